"""Rehearsals of training scripts that never saw this template find each of their slips.

``scripts/`` holds scripts in the manner of public ones. A mended script has no finding.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from projects import Project
from rehearsals import failed_checks, rehearse, size, verdicts

SCRIPTS = Path(__file__).parent / "scripts"
CHECKPOINTS = 'os.path.dirname(os.environ["SM_MODEL_DIR"]) + "/checkpoints'
# Lines of a script with a slip, and how they should be.
Mends = dict[str, tuple[str, str]]
PLAIN_DDP: Mends = {
    "flag": ('action="store_true"', 'type=lambda word: word == "True", default=False'),
    "localhost": ('    os.environ["MASTER_ADDR"] = "localhost"\n', ""),
    "download": (
        '    path = download(Path("data"))\n',
        '    if os.environ["LOCAL_RANK"] == "0":\n        download(Path("data"))\n'
        '    dist.barrier()\n    path = Path("data/points.pt")\n',
    ),
    "print": ("        print(", "        if rank == 0:\n            print("),
    "checkpoint": (
        'epoch + 1}, "checkpoint.pt")',
        f'epoch + 1}}, "new.pt")\n            os.replace("new.pt", {CHECKPOINTS}/last.pt")',
    ),
    "resume": (
        "    if args.resume:\n",
        f'    args.resume = {CHECKPOINTS}/last.pt"\n    if os.path.exists(args.resume):\n',
    ),
    "model": ('"model.pt"', 'os.environ["SM_MODEL_DIR"] + "/model.pt"'),
}
STOCK_LIGHTNING: Mends = {
    "path": ('default="../data"', 'default=os.environ.get("SM_CHANNEL_TRAINING")'),
    "import": ("import argparse\n", "import argparse\nimport json\nimport os\n"),
    "devices": (
        'devices="auto",',
        'devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",\n'
        '        num_nodes=len(json.loads(os.environ["SM_HOSTS"])),',
    ),
    "checkpoints": (
        "log_every_n_steps=1,",
        f'log_every_n_steps=1, default_root_dir={CHECKPOINTS}",',
    ),
    "model": ('"line.ckpt"', 'os.environ["SM_MODEL_DIR"] + "/line.ckpt"'),
}


def mended(script: str, mends: Mends, folder: Path) -> list[str]:
    """The option for a copy of the script with these lines replaced."""
    copy = shutil.copytree(SCRIPTS / script, folder / script)
    text = (copy / "train.py").read_text()
    for slip, mend in mends.values():
        assert text.count(slip) == 1, slip
        text = text.replace(slip, mend)
    (copy / "train.py").write_text(text)
    return ["--source-dir", str(copy)]


def without(mends: Mends, *names: str) -> Mends:
    return {name: mend for name, mend in mends.items() if name not in names}


def assert_found(report: dict[str, Any], **expected: str) -> None:
    """The report fails these checks and no other, with these words, each with what to do."""
    failed = failed_checks(report)
    details = {name.replace("-", "_"): detail for name, detail in failed.items()}
    assert details.keys() == expected.keys(), (failed, report["output"])
    assert report["ok"] == (not expected)
    for name, words in expected.items():
        assert re.search(words, details[name]), (name, details[name])
    for check in report["checks"]:
        assert bool(check["cure"]) == (check["verdict"] == "failed"), check


def test_an_option_that_is_a_flag(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(1, 1, "none"), *mended("plain_ddp", {}, tmp_path), "--", "--shuffle", "True"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report, hosts_succeeded="unrecognized arguments: True")


def test_slips_of_a_ddp_script(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(2, 2, "torch_distributed"), *mended("plain_ddp", {}, tmp_path)]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(
        report,
        main_address="the ranks met at localhost",
        model_saved=r"model/ is empty; lost with the host: code/checkpoint\.pt",
        checkpoints_saved=r"checkpoints/ is empty; lost with the host: code/checkpoint\.pt",
        one_writer=r"ranks 0 and 1 both wrote code/data/points\.pt; ranks 2 and 3",
        one_printer=r"ranks \[1, 3\]",
    )


def test_a_port_of_the_scripts_own_ends_the_rehearsal_at_once(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """The ranks would wait for minutes at a port where nothing listens."""
    slip = {"port": (PLAIN_DDP["localhost"][0], '    os.environ["MASTER_PORT"] = "29500"\n')}
    command = [*size(1, 2, "torch_distributed"), *mended("plain_ddp", slip, tmp_path)]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report, hosts_succeeded=r"at port 29500, but torchrun's store is at \d+$")


def test_a_mended_ddp_script_has_no_finding(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(1, 2, "torch_distributed"), *mended("plain_ddp", PLAIN_DDP, tmp_path)]
    command += ["--", "--shuffle", "True"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report)
    assert len({rank["weights"] for rank in report["ranks"]}) == 1
    assert verdicts(report)["resumes-from-checkpoint"] == "skipped"


@pytest.mark.long
def test_a_ddp_script_that_begins_again_after_a_lost_host(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """The recipe for a Hugging Face Trainer resumes."""
    mends = without(PLAIN_DDP, "resume")
    command = [*size(2, 1, "torch_distributed"), *mended("plain_ddp", mends, tmp_path)]
    command += ["--lose-host", "2", "--", "--epochs", "500"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    words = r"^after step 0; the interruption came after step \d"
    assert_found(report, resumes_from_checkpoint=words)


APART: Mends = {
    "ddp": ("DistributedDataParallel(nn.Linear(8, 2))", "nn.Linear(8, 2)"),
    "weights": ('"model": model.module', '"model": model'),
    "result": ("torch.save(model.module", "torch.save(model"),
    "load": ("model.module.load", "model.load"),
    "seed": ("torch.manual_seed(0)", "torch.manual_seed(rank)"),
    "sampler": ("shuffle=args.shuffle)", "num_replicas=1, rank=0)"),
}
IDLE: Mends = {"train": ("    train(args)", "    dist.get_rank() == 0 and train(args)")}


@pytest.mark.long
@pytest.mark.parametrize(
    "slips, expected",
    [
        (APART, {"data_divided": "both saw 16 of 16", "weights_identical": r"on ranks \[1\]"}),
        (APART | IDLE, {"ranks_complete": r"ranks \[0\] of 2 trained"}),
    ],
)
def test_ranks_that_do_not_work_together(
    slips: Mends,
    expected: dict[str, str],
    project: Project,
    tmp_path: Path,
    without_sdk: dict[str, str],
) -> None:
    """A model without DDP and a sampler without ranks; ranks that are idle."""
    mends = {**without(PLAIN_DDP, "download"), **slips}
    command = [*size(2, 1, "torch_distributed"), *mended("plain_ddp", mends, tmp_path)]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report, **expected)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The option for a channel with the data set of the Lightning script."""
    folder = tmp_path_factory.mktemp("points")
    (folder / "points.csv").write_text("".join(f"{x / 64},{x / 32}\n" for x in range(64)))
    return ["--channel", f"training={folder}"]


@pytest.mark.long
def test_a_relative_path_to_data(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(1, 1, "none"), *mended("stock_lightning", {}, tmp_path)]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report, hosts_succeeded=r"No such file or directory: '\.\./data/points\.csv'")


def test_slips_of_a_lightning_script(
    project: Project, points: list[str], tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    mends = without(STOCK_LIGHTNING, "devices", "checkpoints", "model")
    command = [*size(2, 1, "torch_distributed"), *mended("stock_lightning", mends, tmp_path)]
    report = rehearse(project, tmp_path, *command, *points, **without_sdk)
    assert_found(
        report,
        world_size="1 on 2 ranks; expected 2",
        model_saved=r"lost with the host: code/lightning_logs, code/line\.ckpt",
        checkpoints_saved="lost with the host: code/lightning_logs",
    )


@pytest.mark.long
def test_a_mended_lightning_script_has_no_finding(
    project: Project, points: list[str], tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    source = mended("stock_lightning", STOCK_LIGHTNING, tmp_path)
    command = [*size(2, 1, "torch_distributed"), *source]
    report = rehearse(project, tmp_path, *command, *points, **without_sdk)
    assert_found(report)


OPTIONS = {"report_to": "none", "disable_tqdm": True, "max_steps": 100}


def options(**more: Any) -> list[str]:
    """The options of a short run of a Hugging Face Trainer."""
    pairs = {**OPTIONS, **more}.items()
    return ["--", *(word for name, value in pairs for word in (f"--{name}", str(value)))]


@pytest.mark.long
def test_slips_of_a_hugging_face_script(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(1, 2, "torch_distributed"), *mended("huggingface", {}, tmp_path)]
    command += options(output_dir="out", max_steps=4)
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(
        report,
        model_saved="lost with the host: code/out",
        checkpoints_saved="lost with the host: code/out",
        one_printer=r"ranks \[1\]",
    )


@pytest.mark.long
def test_the_recipe_with_a_hugging_face_trainer(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """Its block in how_to.md trains, resumes to the undisturbed weights, and saves its model."""
    page = project.read("docs/how_to.md").partition("\n## Keep the Hugging Face Trainer\n")[2]
    block = page.partition("```python\n")[2].partition("```")[0]
    source = mended("huggingface", {}, tmp_path)
    (Path(source[1]) / "train.py").write_text(block)
    command = [*size(2, 1, "torch_distributed"), *source, "--stop-host", "2"]
    report = rehearse(project, tmp_path, *command, *options(save_steps=50), **without_sdk)
    assert_found(report)
