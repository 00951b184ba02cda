"""``--image-versions``: pip fills an environment once, in which the command continues."""

import os
import sys
from pathlib import Path

import pytest
from small_rehearsal import JOB

from smlightning_sagemaker import project
from smlightning_sagemaker.job.images import CURRENT, SMDDP
from smlightning_sagemaker.rehearsal import command, image

OWN_IMAGE = 'image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"\n'


@pytest.fixture
def argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line that makes its environment in the test's folder, without an index."""
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.setattr(image.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return ["--image-versions", "--job", str(tmp_path / "job.toml"), "--", "--epochs", "1"]


def test_a_failure_of_pip_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "2.13.0" in line and "--image-versions" in line


def test_the_command_continues_in_the_environment(
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
    assert ran == [[python, "-m", "smlightning_sagemaker", "rehearse", *argv[1:]]]


def test_an_unknown_image_is_an_error(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB + OWN_IMAGE)
    assert command.main(argv) == 2


@pytest.mark.parametrize("changed", ["src/requirements.txt", "vendor/smlightning/pyproject.toml"])
def test_changed_requirements_make_the_environment_anew(changed: str, tmp_path: Path) -> None:
    root, folder = tmp_path / "project", tmp_path / "image"
    files = [root / "src/requirements.txt", root / "vendor/smlightning/pyproject.toml"]
    for path in (*files, folder / image.COMPLETE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert not image.is_current(folder, CURRENT, root), "an unfinished one"
    (folder / image.COMPLETE).write_text(image.contents(CURRENT, root))
    assert image.is_current(folder, CURRENT, root)
    assert not image.is_current(folder, SMDDP, root)
    (root / changed).write_text("another==1")
    assert not image.is_current(folder, CURRENT, root)


def test_a_candidate_of_another_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor = tmp_path / "python3.99"
    impostor.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    impostor.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image.python_of("3.99") == sys.executable
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert image.python_of(here) == sys.executable
