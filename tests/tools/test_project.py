"""A project is found by its folder, and its options are read from its own file."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import checkout
from smlightning.errors import UserError
from smlightning_sagemaker import project
from smlightning_sagemaker.project import Project

NAMES = 'class Options: ...\nMETRICS = ["val/x"]\nMONITOR = "val/x"\nMODE = "min"\n'


@pytest.fixture(autouse=True)
def same_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Options that these tests import are gone afterwards, and the path is as it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "options", raising=False)
    monkeypatch.delenv("SMLIGHTNING_PROJECT")
    yield
    sys.modules.pop("options", None)


def new_project(folder: Path, options: str = NAMES) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "job.toml").touch()
    (folder / "src" / "options.py").write_text(options)
    return folder


def test_the_nearest_project_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_project(tmp_path / "project")
    inner = root / "src" / "deep"
    inner.mkdir()
    assert project.find(inner).root == root
    monkeypatch.chdir(inner)
    assert project.find() == Project(root)
    assert project.find().job_file.is_file() and project.find().src == root / "src"


def test_the_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = new_project(tmp_path / "one"), new_project(tmp_path / "two")
    monkeypatch.chdir(one)
    monkeypatch.setenv("SMLIGHTNING_PROJECT", str(two))
    assert project.find().root == two
    assert project.find(one).root == one
    monkeypatch.setenv("SMLIGHTNING_PROJECT", str(tmp_path))
    with pytest.raises(UserError) as caught:
        project.find()
    assert str(tmp_path) in caught.value.problem and caught.value.hint


def test_a_list_as_a_default_has_the_hint_of_option(tmp_path: Path) -> None:
    slip = "@dataclasses.dataclass\nclass Options:\n    shares: list = [0.1, 0.9]\n"
    root = new_project(tmp_path / "project", f"import dataclasses\n{slip}")
    with pytest.raises(UserError, match=r"options\.py:2 .*option\(\[0\.1, 0\.9\]"):
        Project(root).options()


@pytest.mark.parametrize(
    "slip, line", [("def broken(:", 5), ("import nowhere_to_be_found", 5), ("1 / 0", 5)]
)
def test_an_error_in_options_py_has_its_line(tmp_path: Path, slip: str, line: int) -> None:
    root = new_project(tmp_path / "project", f"{NAMES}{slip}\n")
    with pytest.raises(UserError) as caught:
        Project(root).options()
    assert (
        str(line) in caught.value.problem
        and "options.py" in caught.value.problem
        and "options" not in sys.modules
    )


def test_a_folder_without_a_project_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        project.find(tmp_path)
    assert str(tmp_path) in caught.value.problem and "SMLIGHTNING_PROJECT" in caught.value.hint


def test_a_file_that_is_imported_already_is_not_read_again(tmp_path: Path) -> None:
    """A second import would create other classes than the owner's modules use."""
    here = Project(new_project(tmp_path / "one"))
    here.add_src_to_path()
    import options

    options.MONITOR = "val/z"
    assert here.options().monitor == "val/z" and sys.modules["options"] is options


def test_missing_names_and_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        Project(new_project(tmp_path / "one", "class Options: ...\nMODE = 'max'")).options()
    assert all(name in caught.value.problem for name in ("METRICS", "MONITOR"))
    with pytest.raises(UserError) as caught:
        Project(tmp_path / "two").options()
    assert "options.py" in caught.value.problem


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("given", "status"), [("epochs=1", 2), ("ARGS=--epochs 1", 0), ("VENV=elsewhere", 0)]
)
def test_make_rejects_an_option_instead_of_args(given: str, status: int) -> None:
    """`make train epochs=1` would train with the defaults."""
    makefile = checkout.PROJECT / "Makefile"
    command = ["make", "-n", "-f", str(makefile), "help", given]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == status
    assert ("ARGS=" in ended.stderr) == bool(status)
