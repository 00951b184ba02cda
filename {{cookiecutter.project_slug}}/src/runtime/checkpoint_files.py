"""Checkpoint files: written atomically and beside the training, verified, found again; a full disk is one sentence.

A file's name, ``000007-step000390-<checksum>.ckpt``, orders it by its number and tells whether its content is whole.
"""

import copy
import io
import os
import re
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import CheckpointIO

from runtime import ranks
from runtime.prepared import digest
from runtime.report import UserError

NAME = re.compile(r"(\d{6,})-step(\d+)-([0-9a-f]{16})\.ckpt")
KEEP = 3  # S3's copy follows additions and deletions in any order: the newest few must be there


class AsyncCheckpointIO(CheckpointIO):
    """How Lightning's ``trainer.save_checkpoint`` and ``fit(ckpt_path=...)`` write and read here.

    Writing takes a copy of the state, and a thread does the rest; one that comes while another is being written is
    left out unless it is waited for. Reading checks, and ranks whose host lacks the file get rank 0's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.wait = False
        self.digest = ""
        self.position: dict[str, int] = {}
        self.written: dict[str, int] = {}  # position of the newest
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Called on rank 0."""
        busy = self._pending is not None and not self._pending.done()
        if self.failed() or (busy and not self.wait):
            return
        if self.position != self.written:
            self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
            self._pending = self._thread.submit(write, self.directory, self.position["step"], snapshot(checkpoint))
            self.written = self.position
        if self.wait and self._pending:
            self._pending.exception()  # waits; `failed` tells

    def failed(self) -> bool:
        """Whether the latest checkpoint could not be written."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def finish(self) -> None:
        """Wait for the latest checkpoint; raises what hindered it."""
        if self._pending:
            self._pending.result()

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Called on every rank; loading executes nothing."""
        path = Path(path)
        has_file = ranks.cluster().rank == 0 or (path.is_file() and digest(path).startswith(self.digest))
        if not ranks.any_rank(not has_file):
            return torch.load(path, map_location="cpu", weights_only=True)
        content = [path.read_bytes() if ranks.cluster().rank == 0 else None]
        torch.distributed.broadcast_object_list(content, 0, device=torch.device(ranks.cluster().device))
        return torch.load(io.BytesIO(content[0]), map_location="cpu", weights_only=True)  # type: ignore[arg-type]

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def write(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` as the newest checkpoint, and remove all but the newest KEEP. A reader sees it whole or not at all.

    Raises:
        UserError: it could not be written; those before are as they were.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(".*.ckpt"):  # by a process that was killed
        left.unlink(missing_ok=True)
    known = numbered(directory)
    number = known[0][0] + 1 if known else 1
    temporary = directory / f".{number:06d}.ckpt"
    try:
        torch.save(state, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        path = directory / f"{number:06d}-step{step:06d}-{digest(temporary)[:16]}.ckpt"
        temporary.replace(path)
        _sync(directory)
    except (OSError, RuntimeError) as error:  # torch's writer makes a RuntimeError of a full disk
        temporary.unlink(missing_ok=True)
        free = shutil.disk_usage(directory).free / 2**20
        last = f"the last good one is {known[0][1]}" if known else "there is none yet"
        reason = "the disk is full" if free < 1 else str(error).splitlines()[0][:120]
        raise UserError(
            f"A checkpoint could not be written to {directory}, where {free:.1f} MiB are free ({reason}); {last}; "
            "free some space and start the same command again."
        ) from error
    for _, old in known[KEEP - 1 :]:
        old.unlink(missing_ok=True)
    return path


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in `directory` by their names, newest first."""
    found = [(int(m[1]), p) for p in directory.glob("*.ckpt") if (m := NAME.fullmatch(p.name))]
    return sorted(found, reverse=True)


def newest(directory: Path) -> Path | None:
    """The newest checkpoint that is whole; a warning names each that is not.

    Raises:
        UserError: there are checkpoints, and all are damaged. To start anew is for a person to say.
    """
    known = numbered(directory)
    for _, path in known:
        if whole(path):
            return path
        print(f"warning: {path} is damaged ({path.stat().st_size} bytes), trying the one before", file=sys.stderr)
    if known:
        raise UserError(f"All {len(known)} checkpoints in {directory} are damaged; to start anew say --resume never.")
    return None


def whole(path: Path) -> bool:
    """Whether the content is what the name's checksum says; a name without one says nothing."""
    match = NAME.fullmatch(path.name)
    return match is None or digest(path).startswith(match[3])


def finished(path: Path) -> bool:
    """Whether the run whose last checkpoint this is was completed."""
    mark = path.parent / "finished"
    return mark.is_file() and mark.read_text() == path.name


def snapshot(state: Any) -> Any:
    """A copy in main memory that training does not change."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        made = copy.copy(state)  # keeps the class of a state_dict and what it knows of versions
        for key, value in state.items():
            made[key] = snapshot(value)  # type: ignore[index]
        return made
    if isinstance(state, (list, tuple)):
        return type(state)(snapshot(value) for value in state)
    return state


def _sync(directory: Path) -> None:
    """Make a rename last; on Windows a folder cannot be opened, and needs no such thing."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
