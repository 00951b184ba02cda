"""``--image-versions``: an environment that pip fills once, in which the command goes on."""

import os
import sys
from pathlib import Path

import pytest
from small_rehearsal import JOB

from smlightning import project
from smlightning.launch.images import CURRENT, PROFILES, SMDDP
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
    folder = tmp_path / "image-2.13.0"
    folder.mkdir()
    (folder / image.COMPLETE).write_text(image.contents(CURRENT, project.find().root))
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
