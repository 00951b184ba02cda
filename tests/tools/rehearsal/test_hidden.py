"""Hosts of a rehearsal lack what this machine has and neither the lock nor the image lists."""

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from small_rehearsal import planned, stranger

from smlightning_sagemaker.rehearsal.hidden import with_requirements
from smlightning_sagemaker.rehearsal.hosts import copy_stubs

LOOK = """
from importlib import metadata, util
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


@pytest.mark.parametrize(
    "written, is_hidden",
    [
        (None, True),
        ("tqdm\n", True),
        ("unlocked>=1 --hash=sha256:00\n", False),
        ("Unlocked; python_version > '2'\n", False),
        ("./unlocked-1-py3-none-any.whl  # a wheel\n", False),
    ],
)
def test_hosts_of_another_script_lack_what_its_folder_does_not_list(
    written: str | None, is_hidden: bool, installed: Path, tmp_path: Path
) -> None:
    source = stranger(tmp_path / "other")
    if written is not None:
        (source / "requirements.txt").write_text(written)
    plan = planned(tmp_path, "--source-dir", str(source))
    assert ("unlocked" in plan.hidden_modules) == is_hidden
    assert "pytorch_lightning" in plan.hidden_modules
    assert not {"torch", "numpy", "sagemaker_training"} & {*plan.hidden_modules}


def test_extras_and_what_packages_require_are_on_hosts() -> None:
    requires = {
        "a": ["b[more]", "c; extra == 'less'"],
        "b": ["d; extra == 'more'", "a"],
        "c": [],
        "d": [],
    }
    assert with_requirements([Requirement("A")], requires) == {"a", "b", "d"}
    assert with_requirements([Requirement("a[less]")], requires) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("line", ["-r more.txt", "-e .", "./package"])
def test_a_line_without_a_name_hides_nothing_and_is_printed(
    line: str, installed: Path, tmp_path: Path
) -> None:
    source = stranger(tmp_path / "other")
    (source / "requirements.txt").write_text(f"--index-url https://x\n{line}\n")
    plan = planned(tmp_path, "--source-dir", str(source))
    assert not plan.hidden_modules
    assert plan.notes[0] == (
        f'no package is hidden from the hosts: "{line}" in requirements.txt has no name'
    )
