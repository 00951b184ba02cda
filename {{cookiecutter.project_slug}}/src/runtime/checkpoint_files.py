"""Checkpoint files: written atomically and beside the training, verified, found again; a full disk is one sentence.

A file's name, ``000007-step000390-<checksum>.ckpt``, orders it by its number and tells whether its content is valid.
The best weights have a file of their own, ``000005-best-<checksum>.ckpt``, written once: the checkpoints from there to
the next best ones name it.
"""

import copy
import hashlib
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
from runtime.report import UserError, ensure_dir, root_cause

NAME = re.compile(r"(\d{6,})-step(\d+)-([0-9a-f]{16})\.ckpt")
KEEP = 3  # S3's copy follows additions and deletions in any order: the newest few must be there
BLOCK = 2**26  # bytes sent at a time to hosts that lack the file


class AsyncCheckpointIO(CheckpointIO):
    """How Lightning's ``trainer.save_checkpoint`` and ``fit(ckpt_path=...)`` write and read here.

    Writing takes a copy of the state, and a thread does the rest; one that comes while another is being written
    follows it, or is left out if it may be (``omit``). Reading maps the file; hosts that lack it get rank 0's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.wait = self.omit = False
        self.digest = ""
        self.position: dict[str, int] = {}
        self.written: dict[str, int] = {}  # position of the newest
        self.best: dict[str, Any] | None = None  # rank 0's best weights, in main memory
        self._best_file: Path | None = None  # where they are
        self._best_write: Future[Path] | None = None  # what puts them there
        self._memory: Any = None  # the last copy, which the next one overwrites
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Path] | None = None

    def keep_best(self, weights: Mapping[str, Any]) -> None:
        """Copy the best weights so far; the next checkpoint writes them. Called on rank 0."""
        self.best = snapshot(weights, None if self._busy() else self.best)
        self._best_file = self._best_write = None
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Called on rank 0."""
        if self._pending and not self.omit:
            self._pending.exception()  # waits; `failed` tells
        if self.failed() or self._busy():
            return
        if self.position != self.written:
            self._memory = snapshot(checkpoint, self._memory)
            copied = torch.cuda.current_stream().record_event() if torch.cuda.is_available() else None
            if self._best_write:  # once: the checkpoint that it names is not kept for ever
                self._best_file, self._best_write = best_file(self._best_write.result()), None
            best = (self._best_file or self.best) if self.best else None
            self._pending = self._thread.submit(self._write, self.position["step"], copied, best)
            if best and best is self.best:
                self._best_write = self._pending
            self.written = self.position
        if self.wait and self._pending:
            self._pending.exception()

    def _write(self, step: int, copied: torch.cuda.Event | None, best: dict[str, Any] | Path | None) -> Path:
        if copied:
            copied.synchronize()  # the GPU fills pinned memory while training goes on
        return write(self.directory, step, self._memory, best)

    def _busy(self) -> bool:
        return self._pending is not None and not self._pending.done()

    def failed(self) -> bool:
        """Whether the latest checkpoint could not be written."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def finish(self) -> None:
        """Wait for the latest checkpoint; raises what hindered it."""
        if self._pending:
            self._pending.result()

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Called on every rank; loading executes nothing."""
        path, this = Path(path), ranks.cluster()
        lacking = torch.zeros(this.num_nodes)
        if this.local_rank == 0 and this.rank != 0 and not (path.is_file() and digest(path).startswith(self.digest)):
            lacking[this.node_rank] = 1
        lacking = ranks.all_sum(lacking)
        received = ensure_dir(self.directory) / f".received-{path.name}"
        try:
            if lacking.any():
                _send(path, received, bool(lacking[this.node_rank]))
            state = load(received if lacking[this.node_rank] else path)
            ranks.any_rank(False)  # all ranks of a host have mapped the file
        finally:
            received.unlink(missing_ok=True)
        if this.device == "cpu":  # else the optimizer would keep the mapped file
            state["optimizer_states"] = snapshot(state.get("optimizer_states", []))
        if this.rank == 0 and (best := best_file(path)):
            self.best = snapshot(load(best))
            self._best_file = best if best.parent == self.directory else None  # else it is written anew
        return state

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _send(path: Path, received: Path, lacking: bool) -> None:
    """Send rank 0's file to the hosts that lack it, once to each."""
    this, nothing = ranks.cluster(), Path(os.devnull)
    size = int(ranks.all_sum(torch.tensor(path.stat().st_size if this.rank == 0 else 0)))
    target = received if lacking and this.local_rank == 0 else nothing
    with (path if this.rank == 0 else nothing).open("rb") as source, target.open("wb") as file:
        for start in range(0, size, BLOCK):
            block: Any = torch.empty(min(BLOCK, size - start), dtype=torch.uint8)
            source.readinto(block.numpy())  # only rank 0's holds anything
            block = block.to(this.device)
            torch.distributed.broadcast(block, 0)
            file.write(block.cpu().numpy())
    ranks.any_rank(False)  # it is complete for every rank of its host


def write(directory: Path, step: int, state: dict[str, Any], best: dict[str, Any] | Path | None = None) -> Path:
    """Write `state` as the newest checkpoint, and remove all but the newest KEEP. A reader sees it whole or not at all.

    Args:
        best: the best weights, written to a file of their own; or that file, in the same folder, if it is there.

    Raises:
        UserError: it could not be written; those before are as they were.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_partial(directory)
    known = numbered(directory)
    number = known[0][0] + 1 if known else 1
    try:
        if isinstance(best, Mapping):
            best = _write_file(directory, f"{number:06d}-best", best)
        name = best.name if best else ""
        path = _write_file(directory, f"{number:06d}-step{step:06d}", {**state, "best_file": name})
    except OSError as error:
        _remove_partial(directory)
        free = shutil.disk_usage(directory).free / 2**20
        last = f"the last good one is {known[0][1]}" if known else "there is none yet"
        reason = "the disk is full" if free < 1 else str(error).splitlines()[0][:120]
        raise UserError(
            f"A checkpoint could not be written to {directory}, where {free:.1f} MiB are free ({reason}); {last}; "
            "free some space and start the command again with --resume auto."
        ) from error
    try:
        load(path)
    except Exception as error:  # unpickling knows no bounds
        path.unlink()
        raise UserError(
            f"A checkpoint would hold what cannot be read back ({root_cause(error)}); keep plain data and tensors in "
            "save_hyperparameters() and in the states of callbacks."
        ) from error
    for _, old in known[KEEP - 1 :]:
        old.unlink(missing_ok=True)
    named = {best_file(kept) for _, kept in numbered(directory)}
    for old in directory.glob("*-best-*.ckpt"):
        if old not in named:
            old.unlink()
    return path


def _remove_partial(directory: Path) -> None:
    """What a process that was killed, or a full disk, has left."""
    for left in directory.glob(".*.ckpt"):
        left.unlink(missing_ok=True)


class _HashingFile:
    """What torch writes to: hashed on its way. An error waits until torch is done, whose writer cannot handle one."""

    def __init__(self, file: Any) -> None:
        self.file, self.hash = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            if not self.error:
                self.file.write(data)
                self.hash.update(data)
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        pass


def _write_file(directory: Path, stem: str, content: Mapping[str, Any]) -> Path:
    """Write a file whose name ends in its checksum."""
    temporary = directory / f".{stem}.ckpt"
    with temporary.open("wb") as file:
        hashing: Any = _HashingFile(file)
        torch.save(content, hashing)
        if hashing.error:
            raise hashing.error
        file.flush()
        os.fsync(file.fileno())
    path = directory / f"{stem}-{hashing.hash.hexdigest()[:16]}.ckpt"
    temporary.replace(path)
    if os.name == "posix":  # make the rename last; on Windows a folder cannot be opened, and needs no such thing
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return path


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def best_file(path: Path) -> Path | None:
    """The file of best weights that a checkpoint names; None if it names none, or cannot be read."""
    try:
        name = load(path)["best_file"]
    except Exception:  # unpickling knows no bounds
        return None
    return path.with_name(name) if re.fullmatch(r"\d+-best-[0-9a-f]+\.ckpt", name) else None


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in `directory` by their names, newest first."""
    found = [(int(m[1]), p) for p in directory.glob("*.ckpt") if (m := NAME.fullmatch(p.name))]
    return sorted(found, reverse=True)


def newest(directory: Path) -> Path | None:
    """The newest checkpoint that is whole; a warning names each that is not, and UserError says if none of them is."""
    known = numbered(directory)
    for _, path in known:
        if whole(path):
            return path
        print(f"warning: {path} is damaged ({path.stat().st_size} bytes), trying the one before", file=sys.stderr)
    if known:  # to start anew is for a person to say
        raise UserError(f"All {len(known)} checkpoints in {directory} are damaged; to start anew say --resume never.")
    return None


def whole(path: Path) -> bool:
    """Whether it and its best weights are what their names' checksums say; a name without one says nothing."""
    match = re.search(r"-([0-9a-f]{16})\.ckpt$", path.name)
    if not path.is_file() or (match and not digest(path).startswith(match[1])):
        return False
    best = best_file(path)
    return best is None or whole(best)


def finished(path: Path) -> bool:
    """Whether the run whose last checkpoint this is was completed."""
    mark = path.parent / "finished"
    return mark.is_file() and mark.read_text() == path.name


def snapshot(state: Any, into: Any = None) -> Any:
    """A copy in main memory that training does not change.

    New memory costs many times what the copy does: the system has to clear each page. Beside a GPU the memory is pinned
    and the copy asynchronous: it is complete when the current stream is. (torch makes each pinned block a power of two:
    the memory may be twice the state's.)

    Args:
        into: an earlier copy, not needed any more; its memory is used again where it fits.
    """
    if isinstance(state, torch.Tensor):
        fits = isinstance(into, torch.Tensor) and (into.shape, into.dtype) == (state.shape, state.dtype)
        copied = into if fits else torch.empty_like(state, device="cpu", pin_memory=state.is_cuda)
        return copied.copy_(state.detach(), non_blocking=True)
    if isinstance(state, Mapping):
        made = copy.copy(state)  # keeps the class of a state_dict and what it knows of versions
        for key, value in state.items():
            made[key] = snapshot(value, into.get(key) if isinstance(into, Mapping) else None)  # type: ignore[index]
        return made
    if isinstance(state, (list, tuple)):
        before = into if isinstance(into, (list, tuple)) and len(into) == len(state) else [None] * len(state)
        return type(state)(snapshot(value, old) for value, old in zip(state, before, strict=True))
    return state
