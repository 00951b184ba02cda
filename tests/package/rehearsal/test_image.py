"""``--image-versions``: an environment that pip fills once, in which the command goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_rehearsal import JOB

from smlightning import project
from smlightning.launch import archive
from smlightning.launch.images import CURRENT, PROFILES, SMDDP
from smlightning.launch.requirements import write_wheel
from smlightning.rehearsal import command, image

OWN_IMAGE = 'image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"\n'


@pytest.fixture
def argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line whose environment would be made in the test's folder, without an index."""
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.setattr(image.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return ["--image-versions", "--job", str(tmp_path / "job.toml"), "--", "--epochs", "1"]


def test_where_pip_cannot_make_it_one_line_says_so(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "2.13.0" in line and "--image-versions" in line


def test_the_command_goes_on_in_the_environment(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.toml").write_text(JOB + '[environment]\nPIP_PRE = "1"\n')
    folder = tmp_path / "image-2.13.0"
    folder.mkdir()
    contents = image.contents(CURRENT, project.find().root, {"PIP_PRE": "1"})
    (folder / image.COMPLETE).write_text(contents)
    ran: list[list[str]] = []

    def replaced(program: str, words: list[str]) -> None:
        ran.append(words)
        sys.exit(0)

    monkeypatch.setattr(os, "execv", replaced)
    with pytest.raises(SystemExit):
        command.main(argv)
    python = str(folder / "bin/python")
    assert ran == [[python, "-m", "smlightning", "rehearse", *argv[1:]]]


def test_an_image_that_is_not_known_is_refused(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.toml").write_text(JOB + OWN_IMAGE)
    assert command.main(argv) == 2
    assert "--image-versions" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["src/requirements.txt", "vendor/smlightning/pyproject.toml"])
def test_the_environment_is_made_again_when_its_requirements_change(
    changed: str, tmp_path: Path
) -> None:
    root, folder = tmp_path / "project", tmp_path / "image"
    for path in (root / "src/requirements.txt", root / changed, folder / image.COMPLETE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert not image.is_current(folder, CURRENT, root), "an unfinished one"
    (folder / image.COMPLETE).write_text(image.contents(CURRENT, root))
    assert image.is_current(folder, CURRENT, root)
    assert not image.is_current(folder, SMDDP, root)
    (root / changed).write_text("another==1")
    assert not image.is_current(folder, CURRENT, root)


def test_each_profile_names_the_toolkit_that_its_environment_gets() -> None:
    for profile in PROFILES.values():
        assert image.toolkit(profile) == [f"sagemaker-training=={profile.toolkit}"]


def test_a_python_is_asked_which_version_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A python3.99 on the PATH that is another version is not taken for it."""
    impostor = tmp_path / "python3.99"
    impostor.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    impostor.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image.python_of("3.99") == sys.executable
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert image.python_of(here) == sys.executable


INSTALLED = """\
Metadata-Version: 2.4
Name: smlightning
Version: 1.0.0
Provides-Extra: simulation
Requires-Dist: rich
Requires-Dist: psutil; extra == "simulation"
"""
SHOW = """
import importlib.metadata, smlightning
print(smlightning.__file__, *(f"{d.name}=={d.version}" for d in importlib.metadata.distributions()))
"""


def test_without_vendor_the_running_package_is_installed_and_the_jobs_pip_settings_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index, here a folder, has another package of its name, and two versions of the job's."""
    index, site, source = tmp_path / "index", tmp_path / "site", tmp_path / "project" / "src"
    for folder in (index, source, site / "smlightning-1.0.0.dist-info"):
        folder.mkdir(parents=True)
    (site / "smlightning-1.0.0.dist-info" / "METADATA").write_text(INSTALLED)
    monkeypatch.syspath_prepend(site)
    for name in ("rich", "psutil"):
        write_wheel(index, name, "1.0")
    write_wheel(index, "smlightning", "99.0")
    write_wheel(index, "mine", "1.0")
    write_wheel(index, "mine", "2.0")
    write_wheel(index, "torch", CURRENT.torch)
    write_wheel(index, "sagemaker-training", str(CURRENT.toolkit))
    write_wheel(index, "sagemaker-pytorch-training", CURRENT.pytorch_toolkit or "3.0.0")
    (source / "requirements.txt").write_text("-r more.txt\n")
    (source / "more.txt").write_text("mine\n")
    (source / "older.txt").write_text("mine<2\n")
    monkeypatch.setattr(image.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(image, "OPEN_MPI", tmp_path / "none")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # all that this machine has is its find-links
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    job = {"PIP_CONSTRAINT": "older.txt"}
    python = image.image_python(CURRENT, source.parent, job)
    ended = subprocess.run(
        [python, "-I", "-c", SHOW], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    package, *versions = ended.stdout.split()
    assert {"smlightning==1.0.0", "rich==1.0", "psutil==1.0", "mine==1.0"} <= set(versions)
    copy = Path(package).parent
    assert copy.is_relative_to(tmp_path)
    for path in archive.files_below(archive.PACKAGE):
        assert (copy / path.relative_to(archive.PACKAGE)).read_bytes() == path.read_bytes()
    assert image.is_current(python.parents[1], CURRENT, source.parent, job)
    assert not image.is_current(python.parents[1], CURRENT, source.parent)
    (source / "more.txt").write_text("mine==2\n")
    assert not image.is_current(python.parents[1], CURRENT, source.parent, job)


def test_no_python_of_the_current_folder_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    found = tmp_path / "versions" / "3.99.1" / "bin" / "python"
    found.parent.mkdir(parents=True)
    found.touch()
    monkeypatch.chdir(tmp_path)
    assert list(image.pythons("3.99")) == [sys.executable]
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert len(list(image.pythons("3.99"))) == 2
