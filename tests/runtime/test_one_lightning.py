"""Classes of lightning and pytorch_lightning are the same objects, whichever is imported first.

Each test runs scripts in fresh processes, since an import cannot be taken back.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import checkout
from lightning_copy import copy_lightning, write_top

BEFORE = "import lightning as L, lightning.fabric\nimport smlightning\n"
AFTER = "import smlightning\nimport lightning as L, lightning.fabric\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package lightning."""
    return copy_lightning(tmp_path_factory.mktemp("lightning"))


def run(script: str, *folders: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """The ended process of a script that finds the folders' packages."""
    paths = os.pathsep.join(map(str, [*folders, *checkout.PATHS]))
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result


SAME = """
import importlib, importlib.resources, importlib.util, inspect, pickle, pkgutil, sys
import lightning_fabric
import pytorch_lightning as pl
import lightning.pytorch.callbacks.early_stopping as other_name
import pytorch_lightning.callbacks.early_stopping as early_stopping
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import EarlyStopping
from smlightning.run import Run

assert L.pytorch is pl and L.fabric is lightning_fabric and L.Trainer is pl.Trainer
assert other_name is early_stopping and early_stopping.EarlyStopping is EarlyStopping
assert loggers is pl.loggers and L.Fabric is lightning_fabric.Fabric
assert L.__name__ == L.__spec__.name == "lightning" and L.__version__ == pl.__version__
files = [module.__file__ for module in {*sys.modules.values()} if getattr(module, "__file__", "")]
own = [file for file in files if "lightning" in file and file.endswith(".py")]
assert len(own) == len({*own}) > 100, "a file was loaded twice"
for module in (pl, early_stopping, lightning_fabric):
    assert module.__spec__.name == module.__name__ and not module.__spec__._initializing

assert "class EarlyStopping" in inspect.getsource(other_name)
assert importlib.resources.files("lightning.pytorch").joinpath("trainer").is_dir()
listed = {each.name for each in pkgutil.iter_modules(L.pytorch.__path__, "lightning.pytorch.")}
assert {"lightning.pytorch.trainer", "lightning.pytorch.cli"} <= listed
assert importlib.util.find_spec("lightning.pytorch.cli")
for name in ("lightning.pytorch.nonsense", "pytorch_lightning.nonsense"):
    assert importlib.util.find_spec(name) is None
    try:
        importlib.import_module(name)
        raise AssertionError
    except ModuleNotFoundError as error:
        assert error.name == name
for path in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
    named = f"c{path}.early_stopping\\nEarlyStopping\\n.".encode()
    assert pickle.loads(named) is EarlyStopping
assert pickle.loads(pickle.dumps(EarlyStopping("loss"))).monitor == "loss"
assert importlib.reload(other_name) is early_stopping
"""


@pytest.mark.parametrize("start", [BEFORE, AFTER])
def test_both_names_give_the_same_modules(start: str, package: Path) -> None:
    run(start + SAME, package)


def test_only_the_modules_of_pytorch_lightning_are_loaded(package: Path) -> None:
    assert "lightning.pytorch" not in run(f"{AFTER}print(L.Trainer)", package).stdout
    assert "lightning.pytorch" in run(f"{BEFORE}print(L.Trainer)", package).stdout


@pytest.mark.long
def test_two_loaded_lightnings_end_in_a_sentence(package: Path) -> None:
    for first in ("import lightning, pytorch_lightning", "import lightning_fabric, lightning"):
        ended = run(f"{first}\nimport smlightning", package, status=1)
        assert ended.stderr.startswith("error: ") and "`import smlightning` above" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_another_version_of_lightning_ends_in_a_sentence(package: Path, tmp_path: Path) -> None:
    other = shutil.copytree(package, tmp_path / "other")
    write_top(other, "2.5.6")
    late = "import lightning\nimport smlightning\nimport pytorch_lightning"
    for script in ("import smlightning\nimport lightning", late):
        sentence = run(script, other, status=1).stderr.splitlines()[-1]
        assert "lightning 2.5.6 and pytorch-lightning" in sentence
        assert "write lightning==" in sentence


def test_without_lightning_an_import_is_an_ordinary_error() -> None:
    """Nothing else happens: the runtime imports no part of it."""
    script = """
        import importlib.util, sys
        import smlightning
        from smlightning.run import Run
        assert importlib.util.find_spec("lightning") is None
        try:
            import lightning.pytorch
            raise AssertionError
        except ModuleNotFoundError as error:
            assert error.name == "lightning"
        assert not [name for name in sys.modules if name.split(".")[0] == "lightning"]
        """
    run(script)


NAMES = """
import sys
import torch
from pathlib import Path
import lightning as L
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import LightningCLI
from smlightning import torch_files

class Model(L.LightningModule):
    def __init__(self, stop: L.Callback) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch).mean()
        self.log("loss", loss)
        return loss
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(8, 1), 4)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

path = "lightning.pytorch.callbacks.EarlyStopping"
given = ["--model.stop", path, "--model.stop.monitor", "loss"]
given += ["--trainer.callbacks+", path, "--trainer.callbacks.monitor", "loss"]
given += ["--trainer.callbacks+", "pytorch_lightning.callbacks.ModelCheckpoint"]
given += ["--trainer.callbacks.dirpath", sys.argv[1]]
for option in ("accelerator=cpu", "max_steps=1", "enable_progress_bar=false", "logger=false"):
    given += [f"--trainer.{option}"]
cli = LightningCLI(Model, args=["fit", *given], save_config_callback=None)
found = {type(each) for each in cli.trainer.callbacks}
assert {EarlyStopping, L.pytorch.callbacks.ModelCheckpoint} <= found
(written,) = Path(sys.argv[1]).glob("*.ckpt")
again = Model.load_from_checkpoint(written, weights_only=False)
assert again.hparams.stop.monitor == "loss"
torch.save(cli.model, "model.pt")
assert isinstance(torch.load("model.pt", weights_only=False), L.LightningModule)

# A checkpoint that lightning wrote without smlightning names its own modules.
own, name = EarlyStopping.__module__, "lightning.pytorch.callbacks.early_stopping"
EarlyStopping.__module__ = name
torch.save({"stop": EarlyStopping}, "old.ckpt")
EarlyStopping.__module__ = own
assert torch.load("old.ckpt", weights_only=False)["stop"] is EarlyStopping
with torch.serialization.safe_globals([(EarlyStopping, f"{name}.EarlyStopping")]):
    assert torch_files.load(Path("old.ckpt"))["stop"] is EarlyStopping
"""


@pytest.mark.parametrize("start", [BEFORE, AFTER])
def test_class_paths_and_checkpoints_with_either_name_work(
    start: str, package: Path, tmp_path: Path
) -> None:
    """As options of LightningCLI, in hyperparameters, and in files that hold classes."""
    given = f"import os, sys\nsys.argv[1:] = [{str(tmp_path)!r}]\nos.chdir({str(tmp_path)!r})\n"
    run(given + start + NAMES, package)


WORKERS = """
import sys
START
import pytorch_lightning as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.parts = EarlyStopping("loss"), pl.Trainer
    def __len__(self):
        return 2
    def __getitem__(self, row):
        callback, trainer = self.parts
        assert isinstance(callback, L.Callback) and isinstance(callback, pl.Callback)
        assert trainer is L.Trainer is pl.Trainer
        return row

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(
            Rows(), num_workers=1, multiprocessing_context=method)
        assert [int(row) for row in loader] == [0, 1]
"""


@pytest.mark.long
@pytest.mark.parametrize("start", [BEFORE, AFTER])
def test_each_kind_of_worker_has_one_lightning(start: str, package: Path, tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text(WORKERS.replace("START", start), "utf-8")
    paths = os.pathsep.join(map(str, [package, *checkout.PATHS]))
    subprocess.run(
        [sys.executable, "-W", "ignore", str(main)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=500,
    )
