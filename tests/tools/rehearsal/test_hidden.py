"""Hosts of a rehearsal lack what this machine has and neither the lock nor the image lists."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_rehearsal import planned, stranger

from smlightning_sagemaker.rehearsal.hosts import copy_stubs

LOOK = """
import torch, rehearsal_hidden
from importlib import metadata, util
rehearsal_hidden.hide()
import numpy, datasets, sagemaker_training
assert metadata.version("numpy") and not util.find_spec("unlocked")
assert "unlocked" not in {each.name for each in metadata.distributions()}
import unlocked
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of Python with a package that no requirements.txt lists."""
    folder = tmp_path / "installed"
    (folder / "Unlocked-1.dist-info").mkdir(parents=True)
    (folder / "unlocked.py").touch()
    written = folder / "Unlocked-1.dist-info"
    (written / "METADATA").write_text("Metadata-Version: 2.1\nName: Unlocked\nVersion: 1\n")
    (written / "RECORD").write_text("unlocked.py,,\n")
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_package_that_is_only_installed_here_is_missing_on_hosts(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path)
    assert "unlocked" in plan.hidden_modules and "unlocked" in plan.hidden_packages
    assert "hidden from the hosts" in plan.notes[0]
    assert not {"torch", "numpy", "datasets", "sagemaker_training"} & {*plan.hidden_modules}
    copy_stubs(plan, tmp_path / "stubs")
    paths = [tmp_path / "stubs", installed]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, paths)))
    ended = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.endswith("ModuleNotFoundError: No module named 'unlocked'\n"), ended.stderr


def test_nothing_is_hidden_from_another_script(installed: Path, tmp_path: Path) -> None:
    assert not planned(tmp_path, "--source-dir", str(stranger(tmp_path / "other"))).hidden_modules
