"""``--image-versions``: an environment that pip fills once, in which the command goes on."""

import os
import sys
from pathlib import Path

import pytest
from small_rehearsal import JOB

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
    (folder / image.COMPLETE).touch()
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


@pytest.mark.parametrize(
    "changed", ["src/requirements.txt", "pyproject.toml", "vendor/smlightning/pyproject.toml"]
)
def test_it_is_filled_again_once_what_it_holds_has_changed(changed: str, tmp_path: Path) -> None:
    root, folder = tmp_path / "project", tmp_path / "image"
    needed = ["src/requirements.txt", "pyproject.toml", changed]
    for number, path in enumerate([*(root / name for name in needed), folder / image.COMPLETE]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (number, number))
    assert image.is_current(folder, root)
    os.utime(root / changed, (9, 9))
    assert not image.is_current(folder, root)
