"""Only one run writes to a folder; a file system without locks stops no run."""

import errno
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from smlightning.checkpoints.lock import lock
from smlightning.errors import UserError

module: Any = import_module("smlightning.checkpoints.lock")
HOLD = """
import filelock
lock = filelock.FileLock(".lock")
lock.acquire()
print("held", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.1)


def test_a_folder_locked_by_another_process_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UserError) as refusal:
            lock(tmp_path)
        other.kill()
    assert str(tmp_path) in refusal.value.problem and "--output_dir" in refusal.value.hint
    lock(tmp_path).release()


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [0, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_gives_a_warning_or_a_mark(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For each answer of the system filelock raises an error or sets a mark."""
    fcntl = pytest.importorskip("fcntl", reason="POSIX only")
    error = OSError(number, os.strerror(number)) if number else NotImplementedError  # of filelock 3
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=error))
    first = lock(tmp_path)
    warned = str(tmp_path) in capsys.readouterr().err
    assert first.is_locked != warned
    if first.is_locked:  # by a mark; that of another host may outlive its process
        first.release()
        (tmp_path / ".lock").write_text("1\nanother-host\n")
        with pytest.raises(UserError) as refusal:
            lock(tmp_path)
        assert str(tmp_path / ".lock") in refusal.value.hint


def test_a_read_only_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(FileLock, "acquire", Mock(side_effect=refused))
    with pytest.raises(UserError) as refusal:
        lock(tmp_path)
    assert "Read-only file system" in refusal.value.problem
