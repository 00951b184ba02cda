"""Rehearsals of scripts that never saw this template find each of their slips.

``scripts/`` holds scripts in the manner of public ones. A mended script has no finding.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from projects import Project
from rehearsals import failed_checks, rehearse, size, verdicts
from smlightning_sagemaker.rehearsal import checks

SCRIPTS = Path(__file__).parent / "scripts"
CHECKPOINTS = 'os.path.dirname(os.environ["SM_MODEL_DIR"]) + "/checkpoints'
# Lines of a script with a slip, and how they should be.
Mends = dict[str, tuple[str, str]]
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


RESUMES: Mends = {
    "resume": (
        "args.batch_size))\n",
        "args.batch_size), "
        f'ckpt_path=max(Path({CHECKPOINTS}").rglob("*.ckpt"), '
        "key=os.path.getmtime, default=None))\n",
    ),
    "seed": ("    trainer = Trainer(", "    torch.manual_seed(0)\n    trainer = Trainer("),
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
        assert bool(check["hint"]) == (check["verdict"] == "failed"), check


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


@pytest.mark.long
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


@pytest.mark.long
def test_a_lightning_script_that_begins_again_after_a_lost_host(
    project: Project, points: list[str], tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    source = mended("stock_lightning", without(STOCK_LIGHTNING | RESUMES, "resume"), tmp_path)
    command = [*size(2, 1, "torch_distributed"), *source, *points]
    command += ["--lose-host", "2", "--", "--max_epochs", "300"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    words = r"^after step 0; the interruption came after step \d"
    assert_found(report, resumes_from_checkpoint=words)


@pytest.mark.long
def test_a_lightning_script_that_resumes_ends_with_the_undisturbed_weights(
    project: Project, points: list[str], tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    source = mended("stock_lightning", STOCK_LIGHTNING | RESUMES, tmp_path)
    command = [*size(2, 1, "torch_distributed"), *source, *points]
    command += ["--lose-host", "2", "--", "--max_epochs", "300"]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report)
    assert verdicts(report)["resumes-from-checkpoint"] == "passed"


# Options of a script with LightningCLI and config.yaml, and what a rehearsal with them finds.
OF_CLI: list[tuple[list[str], dict[str, str]]] = [
    (["--model.lr", "0.05", "--trainer.max_epochs", "3"], {}),
    (["--trainer.strategy", "fsdp"], {}),
    (
        ["--trainer.use_distributed_sampler", "false"],
        {"data_divided": "both saw 12 of 12 batches"},
    ),
    (["--model.lr", "high"], {"hosts_succeeded": 'Parser key "model.lr": Expected .*high$'}),
]


@pytest.mark.long
@pytest.mark.parametrize("options, expected", OF_CLI)
def test_a_script_with_lightnings_own_command_line(
    options: list[str],
    expected: dict[str, str],
    project: Project,
    tmp_path: Path,
    without_sdk: dict[str, str],
) -> None:
    source = mended("lightning_cli", {}, tmp_path)
    command = [*size(2, 1, "torch_distributed"), *source, "--", *options]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report, **expected)


EACH_RANK_SAVES = ("if dist.get_rank() == 0:", "if True:")
# Scripts without Lightning, the size of the cluster, a fault of each, and what finds it.
PLAIN: list[tuple[str, tuple[int, int], tuple[str, str], dict[str, str]]] = [
    (
        "plain_ddp",
        (1, 2),
        ("DistributedSampler(data)", "DistributedSampler(data, 2, 0)"),
        {"data_divided": "both saw 6 of 6 batches"},
    ),
    (
        "plain_ddp",
        (2, 1),
        ("    dist.destroy", "    net[0].bias.data += dist.get_rank()\n    dist.destroy"),
        {"weights_identical": r"on ranks \[1\]"},
    ),
    (
        "plain_ddp",
        (2, 1),
        ('os.environ["SM_MODEL_DIR"] + "/model.pt"', '"model.pt"'),
        {"model_saved": r"lost with the host: code/model\.pt"},
    ),
    (
        "plain_ddp",
        (2, 1),
        (
            'dist.init_process_group("nccl")',
            'dist.init_process_group("nccl", rank=0, world_size=1)',
        ),
        {"world_size": "1 on 2 ranks; expected 2"},
    ),
    ("plain_fsdp", (2, 1), EACH_RANK_SAVES, {"one_writer": "rank 1 wrote 1 files"}),
    (
        "accelerate",
        (2, 1),
        (
            "= accelerator.prepare(model, optimizer, loader)",
            "= *accelerator.prepare(model, optimizer), loader",
        ),
        {"data_divided": "both saw 9 of 9 batches"},
    ),
    (
        "hugging_face",
        (2, 1),
        (
            "    trainer.save_model",
            '    open(arguments.output_dir + "/x", "w").close()\n    trainer.save_model',
        ),
        {"one_writer": "not on host 1: host-2/model/x"},
    ),
    (
        "plain_fsdp1",
        (2, 1),
        ("DistributedSampler(data)", "DistributedSampler(data, 2, 0)"),
        {"data_divided": "both saw 6 of 6 batches"},
    ),
    (  # as HYBRID_SHARD does on hosts of one GPU
        "plain_fsdp1",
        (2, 1),
        ("FSDP(net, ", "FSDP(net, dist.new_subgroups(1)[0], "),
        {"weights_identical": r"on ranks \[1\]"},
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "number, faulty",
    [*((number, True) for number in range(9)), *((n, False) for n in (0, 4, 5, 6, 7))],
)
def test_a_script_without_lightning(
    number: int, faulty: bool, project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    script, (hosts, processes), fault, expected = PLAIN[number]
    if script in ("accelerate", "hugging_face"):
        pytest.importorskip("accelerate")
        pytest.importorskip("transformers")
    text = project.read("job.toml")
    job = tmp_path / "job.toml"
    job.write_text(text.replace('checkpoint_s3 = "auto"', 'checkpoint_s3 = ""'), encoding="utf-8")
    source = mended(script, {"fault": fault} if faulty else {}, tmp_path)
    command = [*size(hosts, processes, "torch_distributed"), "--job", str(job), *source]
    report = rehearse(project, tmp_path, *command, **without_sdk)
    assert_found(report, **(expected if faulty else {}))
    assert report["removed"] == [*checks.OF_LIGHTNING]


@pytest.mark.long
def test_a_fault_in_a_script_without_lightning(
    project: Project, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(1, 2, "torch_distributed"), *mended("plain_ddp", {}, tmp_path)]
    report = rehearse(project, tmp_path, *command, "--fail-rank", "1", **without_sdk)
    assert "rank 1 fails because" in report["printed"]
    assert verdicts(report)["ends-in-time"] == "passed", report["output"]


@pytest.mark.long
@pytest.mark.parametrize("devices", ['"auto"', "-1", "[0, 1]", "2"])
def test_a_lightning_script_that_asks_for_gpus(
    devices: str, project: Project, points: list[str], tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    asks = f'sync_batchnorm=True, devices={devices}, strategy="ddp",'
    mends = {
        **STOCK_LIGHTNING,
        "devices": (STOCK_LIGHTNING["devices"][0], asks),
        "accelerator": ('accelerator="auto"', 'accelerator="gpu"'),
    }
    command = [*size(1, 2, "torch_distributed"), *mended("stock_lightning", mends, tmp_path)]
    report = rehearse(project, tmp_path, *command, *points, **without_sdk)
    assert_found(report)
    assert report["on_cpu"] == ['accelerator="gpu"'] and not report["removed"]
