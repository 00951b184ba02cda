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
from lightning_copy import copy_lightning

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


def test_two_loaded_lightnings_end_in_a_sentence(package: Path) -> None:
    for first in ("import lightning, pytorch_lightning", "import lightning_fabric, lightning"):
        ended = run(f"{first}\nimport smlightning", package, status=1)
        assert ended.stderr.startswith("error: ") and "`import smlightning` above" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_another_version_of_lightning_ends_in_a_sentence(package: Path, tmp_path: Path) -> None:
    other = shutil.copytree(package, tmp_path / "other")
    (metadata,) = other.glob("*.dist-info/METADATA")
    metadata.write_text("Metadata-Version: 2.4\nName: lightning\nVersion: 2.5.6\n", "utf-8")
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
