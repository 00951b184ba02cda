"""Checkpoint files: names and checksums; how they are written whole, found again and removed.

A file's name, ``000007-step000390-<checksum>.ckpt``, orders it by its number and tells whether its
content is valid. The best weights have a file of their own, ``000005-best-<checksum>.ckpt``,
written once: the checkpoints from there to the next best ones name it.

Of tensors that are divided among ranks each rank writes its part, a shard, to a file of its own:
``000007-00002-of-00004-<checksum>.shard``, and ``000005-best-00002-of-00004-<checksum>.shard``. The
checkpoint, written when all shards are, names them: without it they are nothing.
"""

import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from smlightning import torch_files
from smlightning.cluster.parts import Shard
from smlightning.errors import UserError, root_cause
from smlightning.files import atomic_write, digest

NAME = re.compile(r"(\d{6,})-step(\d+)-([0-9a-f]{16})\.ckpt")
BEST_NAME = re.compile(r"\d{6,}-best-[0-9a-f]{16}\.ckpt")
SHARD_NAME = re.compile(r"(\d{6,})-(best-)?\d{5}-of-\d{5}-[0-9a-f]{16}\.shard")
CHECKSUM = re.compile(r"-([0-9a-f]{16})\.(ckpt|shard)$")  # of all three
KEEP = 3  # S3's copy follows additions and deletions in any order: the newest few must be there
FINISHED = "finished"  # holds the name of the last checkpoint of a complete run
DISCARDED = "discarded"  # holds the name of the last checkpoint before a `--resume never`
TEMPORARY = ".*.ckpt"  # what is being written, or was when a process was killed
TEMPORARY_SHARD = ".*.shard"
DIVIDED = "divided"  # in a checkpoint: the names of its shards, and the best weights


# Writing


def write(
    directory: Path,
    step: int,
    state: Mapping[str, Any],
    best: Path | None = None,
    number: int | None = None,
) -> Path:
    """Write ``state`` as the newest checkpoint. A reader sees the file whole or not at all.

    Args:
        step: for its name.
        best: the file of the best weights in the same folder, which the checkpoint names.
        number: None: the one after the newest's.

    Raises:
        UserError: it could not be written, or not be read back; those before are as they were.
    """
    _prepare(directory)
    stem = f"{number or next_number(directory):06d}-step{step:06d}"
    content = {**state, "best_file": best.name if best else ""}
    with _disk_errors_explained(directory):
        path = _write_file(directory, stem, content)
    try:
        load(path)
    except Exception as error:  # unpickling knows no bounds
        path.unlink()
        raise UserError(
            f"A checkpoint would hold what cannot be read back ({root_cause(error)})",
            "keep plain data and tensors in save_hyperparameters() and in the states of callbacks",
        ) from error
    return path


def write_best(directory: Path, weights: Mapping[str, Any]) -> Path:
    """Write the best weights to a file of the next checkpoint's number; raises as `write`."""
    _prepare(directory)
    with _disk_errors_explained(directory):
        return _write_file(directory, f"{next_number(directory):06d}-best", weights)


def write_shard(
    directory: Path, number: int, shard: Shard, rank: int, shards: int, *, best: bool = False
) -> Path:
    """Write one rank's part, of so many, of checkpoint ``number``, or of its best weights.

    Raises:
        UserError: it could not be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    kind = "best-" if best else ""
    stem = f"{number:06d}-{kind}{rank:05d}-of-{shards:05d}"
    with _disk_errors_explained(directory):
        return _write_file(directory, stem, shard, ".shard")


def prune(directory: Path) -> tuple[int, set[str]]:
    """Remove all but the newest KEEP checkpoints, and best weights and shards that none of these
    names.

    Where one of these cannot be read (it is damaged, or the disk fails for a moment), nobody knows
    what it names: only old checkpoints are removed then.

    Returns:
        What `prune_shards` needs on another host.
    """
    for _, old in numbered(directory)[KEEP:]:
        old.unlink(missing_ok=True)
    known = numbered(directory)
    try:
        named = {name for _, path in known for name in files_beside(path)}
    except Exception:  # unpickling knows no bounds
        return 0, set()
    for path in directory.glob("*-best-*.ckpt"):
        if BEST_NAME.fullmatch(path.name) and path.name not in named:
            path.unlink()
    newest_number = known[0][0] if known else 0
    prune_shards(directory, newest_number, named)
    return newest_number, named


def prune_shards(directory: Path, newest_number: int, named: Collection[str]) -> None:
    """Remove the shards up to this number that no checkpoint names; later ones are being written.

    Ranks of one host may do so at the same time.
    """
    for path in directory.glob("*.shard"):
        match = SHARD_NAME.fullmatch(path.name)
        if match and int(match[1]) <= newest_number and path.name not in named:
            path.unlink(missing_ok=True)


def remove_temporary_shards(directory: Path) -> None:
    """Remove what ranks that were killed have left; before any rank of this host writes."""
    for path in directory.glob(TEMPORARY_SHARD):
        path.unlink(missing_ok=True)


def mark_discarded(directory: Path) -> None:
    """Record that no run is to go on from the newest checkpoint: one is started anew.

    Raises:
        UserError: the record could not be written.
    """
    known = numbered(directory)
    if not known:
        return
    try:
        with atomic_write(directory / DISCARDED) as mark:
            mark.write_text(known[0][1].name)
    except OSError as error:
        problem = f"That the run in {directory} is discarded could not be written"
        raise UserError(f"{problem} ({error.strerror})", "free some space") from None


def mark_finished(directory: Path) -> None:
    """Record that the run of the newest checkpoint is complete, artifacts included.

    Of its shards, which may lie on other hosts, nothing is asked: this run has just written them.

    Raises:
        UserError: the record could not be written.
    """
    named: set[str] = set()
    for _, path in numbered(directory):
        with contextlib.suppress(Exception):  # unpickling knows no bounds; it is no whole one then
            named.update(files_beside(path))
    latest = newest(directory, named)
    if latest is None:
        return
    try:
        with atomic_write(directory / FINISHED) as mark:
            mark.write_text(latest.name)
    except OSError as error:
        raise UserError(
            "The model is saved, but not that the run is finished, in "
            f"{directory} ({error.strerror})",
            "free some space, and start the command again with --resume auto: it trains nothing "
            "anew",
        ) from None


class _HashingFile:
    """What torch writes to: the content is hashed on its way.

    An error waits until torch is done, whose writer cannot handle one.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.hash = hashlib.sha256()
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


def _write_file(
    directory: Path, stem: str, content: Mapping[str, Any], suffix: str = ".ckpt"
) -> Path:
    """Write a file whose name ends in its checksum, under another name first."""
    temporary = directory / f".{stem}{suffix}"
    with temporary.open("wb") as file:
        hashing: Any = _HashingFile(file)
        torch.save(content, hashing)
        if hashing.error:
            raise hashing.error
        file.flush()
        os.fsync(file.fileno())
    path = directory / f"{stem}-{hashing.hash.hexdigest()[:16]}{suffix}"
    temporary.replace(path)
    _make_rename_last(directory)
    return path


def _make_rename_last(directory: Path) -> None:
    """Sync the folder; on Windows it cannot be opened, and needs no such step."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _prepare(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    _remove_temporary(directory)


def _remove_temporary(directory: Path) -> None:
    """Remove what a process that was killed, or a full disk, has left."""
    for path in directory.glob(TEMPORARY):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _disk_errors_explained(directory: Path) -> Iterator[None]:
    """An OSError becomes a UserError that names the last good checkpoint."""
    try:
        yield
    except OSError as error:
        _remove_temporary(directory)
        known = numbered(directory)
        free = shutil.disk_usage(directory).free / 2**20
        reason = "the disk is full" if free < 1 else str(error).splitlines()[0][:120]
        last = f"the last good one is {known[0][1]}" if known else "there is none yet"
        raise UserError(
            f"A checkpoint could not be written to {directory}, where {free:.1f} MiB are free "
            f"({reason}); {last}",
            "free some space and start the command again with --resume auto",
        ) from error


# Reading


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, mapped into memory; raises as `torch_files.load`."""
    content: dict[str, Any] = torch_files.load(path)
    return content


def best_file(path: Path) -> Path | None:
    """The file of best weights that a checkpoint names; None if it names none or is damaged."""
    try:
        name = load(path)["best_file"]
    except Exception:  # unpickling knows no bounds
        return None
    return path.with_name(name) if BEST_NAME.fullmatch(name) else None


def files_beside(path: Path) -> list[str]:
    """Names of the files that a checkpoint needs beside its own.

    Raises:
        Exception: of any class, where it cannot be read.
    """
    content = load(path)
    divided = content.get(DIVIDED, {"shards": [], "best_shards": []})
    names = [content["best_file"], *divided["shards"], *divided["best_shards"]]
    return [n for n in names if BEST_NAME.fullmatch(n) or SHARD_NAME.fullmatch(n)]


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in ``directory`` with their numbers, newest first."""
    matches = [(NAME.fullmatch(path.name), path) for path in directory.glob("*.ckpt")]
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def next_number(directory: Path) -> int:
    known = numbered(directory)
    return known[0][0] + 1 if known else 1


def newest(directory: Path, verified: Collection[str] | None = None) -> Path | None:
    """The newest checkpoint that is whole; None where there is no checkpoint at all.

    A warning names each that is damaged.

    Args:
        verified: as `whole` has it.

    Raises:
        UserError: all are damaged; to start anew is for a person to say.
    """
    known = numbered(directory)
    for _, path in known:
        fault = fault_of(path, verified)
        if not fault:
            return path
        print(f"warning: {path} {fault}, trying the one before", file=sys.stderr)
    if known:
        raise UserError(
            f"All {len(known)} checkpoints in {directory} are damaged",
            "to start anew say --resume never",
        )
    return None


def whole(path: Path, verified: Collection[str] | None = None) -> bool:
    """Whether a checkpoint has no fault; see `fault_of`."""
    return not fault_of(path, verified)


def fault_of(path: Path, verified: Collection[str] | None = None) -> str:
    """Why a checkpoint cannot be resumed from; "" where it, and the files that it names, are what
    the checksums in their names say.

    A name without a checksum says nothing.

    Args:
        verified: names of the shards that are, on this host or another. None: look at this one's.
    """
    damaged = f"is damaged ({path.stat().st_size} bytes)"
    if not _matches_checksum(path):
        return damaged
    try:
        names = files_beside(path)
    except torch_files.ProgramError:
        return "is a program (a TorchScript archive) and no checkpoint"
    except Exception:  # unpickling knows no bounds
        return damaged
    for name in names:
        if verified is not None and SHARD_NAME.fullmatch(name):
            is_whole = name in verified
        else:
            is_whole = _matches_checksum(path.with_name(name))
        if not is_whole:
            return damaged
    return ""


def verified_shards(directory: Path, index: int = 0, count: int = 1) -> list[str]:
    """The names of the folder's shards whose content is what its checksum says.

    Args:
        index: which of ``count`` processes this is, that look at a part of them each.
    """
    names = sorted(path.name for path in directory.glob("*.shard"))
    return [name for name in names[index::count] if _matches_checksum(directory / name)]


def _matches_checksum(path: Path) -> bool:
    match = CHECKSUM.search(path.name)
    if not path.is_file():
        return False
    return not match or digest(path).startswith(match[1])


def checksum(path: Path) -> str:
    """SHA-256 of a file, or the part of it that its name holds."""
    match = NAME.fullmatch(path.name)
    return match[3] if match else digest(path)


def finished(path: Path) -> bool:
    """Whether the run whose last checkpoint this is was completed."""
    return _is_named(path, FINISHED)


def discarded(path: Path) -> bool:
    """Whether a run was started anew after this checkpoint, which was the newest then."""
    return _is_named(path, DISCARDED)


def _is_named(path: Path, mark: str) -> bool:
    file = path.parent / mark
    return file.is_file() and file.read_text() == path.name
