"""examples/bring-your-project: what a project does before its move here, it does after it, too."""

import ast
import json
import os
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from example_projects import CONTRACT, assert_five_kills_change_no_bit, bake_example
from lightning_copy import copy_lightning, write_top
from projects import TEMPLATE, Project, bake
from rehearsals import failed_checks, rehearse, size, verdicts

pytestmark = pytest.mark.long
EXAMPLE = TEMPLATE / "examples" / "bring-your-project"
PAGE = "docs/bring_your_project.md"
EPOCHS = "8"


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the example's files, and a channel."""
    sources = filter(Path.is_dir, (EXAMPLE / "after").iterdir())
    made = bake_example(tmp_path_factory.mktemp("moved"), *sources)
    write_top(made.path / "src")  # hosts of the rehearsal find it there
    return made


@pytest.fixture(scope="module")
def data(moved: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of windows.npz."""
    folder = tmp_path_factory.mktemp("windows")
    moved.run("python", str(EXAMPLE / "before" / "windows.py"), str(folder / "windows.npz"))
    return folder


def last_metric(printed: str, name: str) -> float:
    return float(re.findall(rf"^{name} +(\S+)$", printed, re.M)[-1])


@pytest.fixture(scope="module")
def before(moved: Project, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The test's metrics under stock Lightning, and the folder of the run."""
    out = tmp_path_factory.mktemp("before")
    command = ["python", str(EXAMPLE / "before" / "train.py"), "--epochs", EPOCHS]
    command += ["--data", str(data / "windows.npz"), "--out", str(out)]
    packages = str(copy_lightning(tmp_path_factory.mktemp("lightning")))
    printed = moved.run(*command, PYTHONPATH=packages, OMP_NUM_THREADS="1").stdout
    return {**ast.literal_eval(printed.splitlines()[-1]), "out": out, "packages": packages}


def after(moved: Project, data: Path, folder: Path, *more: str, ranks: int = 1) -> str:
    """The output of train.py."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command = ["python", *(start if ranks > 1 else []), "src/train.py", "--epochs", EPOCHS]
    values = ["--dataset", str(data / "windows.npz"), "--output_dir", str(folder)]
    values += ["--batch_size", str(32 // ranks)]
    return moved.run(*command, *values, *more, OMP_NUM_THREADS="1").stdout


TEST_ROWS = """
import hashlib, sys
from vae.data import WindowData
data = WindowData(sys.argv[1], 32)
for stage in ("fit", "test"):
    data.setup(stage)
    rows = b"".join(x.numpy().tobytes() for x, _ in data.test)
    print(len(data.test), hashlib.sha256(rows).hexdigest())
"""


def test_the_results_before_and_after_the_move_are_alike(
    moved: Project, data: Path, before: dict[str, Any], tmp_path: Path
) -> None:
    printed = after(moved, data, tmp_path / "one")
    loss = last_metric(printed, "test/loss")
    assert loss == pytest.approx(before["test_loss"], rel=0.1)
    assert last_metric(printed, "test/auroc") == pytest.approx(before["test_auroc"], abs=0.1)
    rows = set()
    for path in (EXAMPLE / "before", moved.path / "src"):
        command = ["python", "-c", TEST_ROWS, str(data / "windows.npz")]
        paths = os.pathsep.join([before["packages"], str(path)])
        rows |= {*moved.run(*command, PYTHONPATH=paths).stdout.splitlines()}
    assert len(rows) == 1
    two = after(moved, data, tmp_path / "two", ranks=2)
    assert last_metric(two, "test/loss") == pytest.approx(loss, rel=0.1)


def test_an_old_checkpoint_gives_the_first_weights(
    moved: Project, data: Path, before: dict[str, Any], tmp_path: Path
) -> None:
    old = before["out"] / "checkpoints" / "last.ckpt"
    given = ["--epochs", "1", "--lr", "1e-9"]
    fresh = after(moved, data, tmp_path / "fresh", *given)
    tuned = after(moved, data, tmp_path / "tuned", *given, "--init_from", str(old))
    assert last_metric(fresh, "test/loss") > 2 * before["test_loss"]
    assert last_metric(tuned, "test/loss") == pytest.approx(before["test_loss"], rel=0.1)


def test_five_kills_change_no_bit(moved: Project, tmp_path: Path) -> None:
    """On two ranks; the average of the weights and the warm-up are the project's own callbacks."""
    assert_five_kills_change_no_bit(moved, tmp_path)


def test_the_moved_project_keeps_the_contract(moved: Project, tmp_path: Path) -> None:
    """The rehearsal on two hosts included."""
    moved.run(*CONTRACT, str(tmp_path / "contract"))
    (report,) = tmp_path.rglob("report.json")
    assert verdicts(json.loads(report.read_text("utf-8")))["model-predicts"] == "passed"


def test_the_move_changes_what_the_page_says(moved: Project) -> None:
    """Logged names in the package, and no import; in train.py only additions."""
    for name in ("data.py", "callbacks.py", "model.py"):
        old, new = ((EXAMPLE / each / "vae" / name) for each in ("before", "after/src"))
        changed = {*old.read_text("utf-8").splitlines()}
        changed ^= {*new.read_text("utf-8").splitlines()}
        assert all(re.search(r"log|loss|divergence", line) for line in changed), changed
        assert "import lightning as L" in new.read_text("utf-8")
    template = next(TEMPLATE.glob("{{*}}")) / "src" / "train.py"
    removed = {*template.read_text("utf-8").splitlines()}
    removed -= {*moved.read("src/train.py").splitlines()}
    assert [line.strip() for line in removed] == ["],  # yours follow here"]


@pytest.fixture
def script(moved: Project, tmp_path: Path) -> Path:
    """The project before its move, with what the page says of one that keeps its script."""
    folder = shutil.copytree(EXAMPLE / "before", tmp_path / "script")
    for name in ("dist.py", "requirements.txt"):
        shutil.copy(moved.path / "src" / name, folder)
    copy_lightning(folder)
    (diff,) = re.findall(r"```diff\n(.*?)```", moved.read(PAGE), re.S)
    subprocess.run(["git", "apply", "-p1"], cwd=folder, input=diff, text=True, check=True)
    model = (folder / "vae" / "model.py").read_text("utf-8")
    model = re.sub(r"(self\.log\(\"\w+_loss\", .*)\)", r"\1, sync_dist=True)", model)
    (folder / "vae" / "model.py").write_text(model, "utf-8")
    return folder


def test_a_kept_script_passes_the_rehearsal_and_is_sent(
    moved: Project, data: Path, script: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    command = [*size(2, 1, "torch_distributed"), "--source-dir", str(script)]
    command += [f"--channel=training={data}", "--", "--epochs", "2"]
    report = rehearse(moved, tmp_path, *command, **without_sdk)
    assert not failed_checks(report), report["output"]
    assert verdicts(report)["metrics-identical"] == "passed"

    sender = bake(tmp_path / "sender")
    shutil.rmtree(sender.path / "tests")
    for name in ("train", "options", "data", "model", "predict"):
        (sender.path / "src" / f"{name}.py").unlink()
    requirements = f"lightning=={version('pytorch-lightning')} --hash=sha256:{'0' * 64}\n"
    requirements += (script / "requirements.txt").read_text("utf-8")
    (script / "requirements.txt").write_text(requirements, "utf-8")
    shutil.rmtree(script / "lightning")
    shutil.copytree(script, sender.path / "src", dirs_exist_ok=True)
    assert "declare its options there" in sender.run(
        "python", "-m", "smlightning_sagemaker", "preflight", "--offline", check=False
    ).stdout.replace("\n", " ")
    (options,) = re.findall(r"```python\n(.*?)```", moved.read(PAGE), re.S)
    (sender.path / "src" / "options.py").write_text(options, "utf-8")
    job = sender.read("job.toml").replace("# epochs = 10", "epochs = 2")
    (sender.path / "job.toml").write_text(job, "utf-8")
    sender.run("python", "-m", "smlightning_sagemaker", "preflight", "--offline")


def test_a_script_of_the_other_lightning_is_rehearsed(
    moved: Project, data: Path, tmp_path: Path, without_sdk: dict[str, str]
) -> None:
    """The rehearsal sees its ranks: here one on each host, which is a finding."""
    folder = shutil.copytree(EXAMPLE / "before", tmp_path / "script")
    shutil.copy(moved.path / "src" / "requirements.txt", folder)
    copy_lightning(folder)
    command = [*size(2, 1, "torch_distributed"), "--source-dir", str(folder)]
    command += [f"--channel=training={data}", "--", "--epochs", "1"]
    command += ["--data", "../input/data/training/windows.npz"]
    report = rehearse(moved, tmp_path, *command, **without_sdk)
    failed = failed_checks(report)
    assert failed.keys() == {"world-size", "model-saved", "checkpoints-saved"}, report["output"]
    assert failed["world-size"].startswith("1 on 2 ranks; expected 2")


CLI = """
import sys
from pathlib import Path
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningCLI
import dist

class Model(LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(1, 1)
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(16, 1), 4)
    def training_step(self, batch, _):
        return self.net(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)

PAGE
out = Path(cli.trainer.default_root_dir, f"rank-{cli.trainer.global_rank}")
out.write_text(f"{cli.trainer.world_size} ranks, lr {cli.model.hparams.lr}")
"""


def test_a_script_of_lightning_cli_gets_its_ranks(moved: Project, tmp_path: Path) -> None:
    (code,) = re.findall(r"```text\n(class ClusterCLI.*?)```", moved.read(PAGE), re.S)
    code = code.replace("ClusterCLI(Model, Data,", "cli = ClusterCLI(Model,")
    (tmp_path / "train.py").write_text(CLI.replace("PAGE", code), "utf-8")
    shutil.copy(moved.path / "src" / "dist.py", tmp_path)
    start = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    given = ["--model.lr", "0.2", "--trainer.max_epochs", "1", "--trainer.logger", "false"]
    given += ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path)]
    moved.run(*start, str(tmp_path / "train.py"), *given)
    said = {path.name: path.read_text("utf-8") for path in tmp_path.glob("rank-*")}
    assert said == dict.fromkeys(("rank-0", "rank-1"), "2 ranks, lr 0.2")
