"""Checkpoint files: how they are named, written whole, verified, read and removed.

A checkpoint, ``000007-step000390-<checksum>.ckpt``, holds the state, the position, and the names of
the files next to it: the best weights, ``000005-best-00000-of-00001-<checksum>.shard``, written
once for all checkpoints until the next best ones, and with FSDP each rank's shard of the state,
``000007-00002-of-00004-<checksum>.shard``. It is written last: without it they mean nothing.

The number orders checkpoints, and the checksum (of SHA-256) shows whether the content is valid.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from smlightning import torch_files
from smlightning.checkpoints import values
from smlightning.checkpoints.position import Position
from smlightning.cluster import shards
from smlightning.errors import UserError
from smlightning.files import atomic_write, digest

NAME = re.compile(r"(\d{6,})-step(\d+)-[0-9a-f]{16}\.ckpt")  # number and step
SHARD_NAME = re.compile(r"((\d{6,})-(?:best-)?)\d{5}-of-\d{5}-[0-9a-f]{16}\.shard")
KEEP = 3  # S3's copy follows additions and deletions in any order: the newest few must be there
TEMPORARY = (".*.ckpt", ".*.shard")  # being written, or left by a process that was killed
ENDED = "ended"  # the file that holds a checkpoint's name, and how its run ended:
FINISHED = "finished"  # it is complete
DISCARDED = "discarded"  # a run with `--resume never` came after it


# Writing


def write(
    directory: Path,
    position: Position,
    state: Mapping[str, Any],
    names: Mapping[str, list[str]] | None = None,
    number: int | None = None,
) -> Path:
    """Write ``state`` as the newest checkpoint. A reader sees the file whole or not at all.

    Args:
        position: of the state.
        names: of the files next to it, ``shards`` and ``best``.
        number: None: the one after the newest's.

    Raises:
        UserError: it could not be written; those before are as they were.
    """
    stem = f"{number or next_number(directory):06d}-step{position.step:06d}"
    files = {"shards": [], "best": [], **(names or {})}
    content = {**state, "position": asdict(position), "files": files}
    return write_file(directory, stem, content, ".ckpt")


def write_file(
    directory: Path, stem: str, content: Mapping[str, Any], suffix: str = ".shard"
) -> Path:
    """Write a file whose name ends in its checksum, under another name first.

    Raises:
        UserError: the disk is full or fails.
    """
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{stem}{suffix}"
    try:
        with temporary.open("wb") as file:
            hashing: Any = _HashingFile(file)
            torch.save(content, hashing)
            if hashing.error:
                raise hashing.error
            file.flush()
            os.fsync(file.fileno())
        path = directory / f"{stem}-{hashing.hash.hexdigest()[:16]}{suffix}"
        temporary.replace(path)
        if os.name == "posix":  # make the rename last; Windows needs no such step
            descriptor = os.open(directory, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        newest = newest_path(directory)
        free = shutil.disk_usage(directory).free / 2**20
        last = f"the last good one is {newest}" if newest else "there is none yet"
        raise UserError(
            f"A checkpoint could not be written to {directory}, where {free:.1f} MiB are free "
            f"({str(error).splitlines()[0][:120]}); {last}",
            "free some space and start the command again with --resume auto",
        ) from error
    return path


class _HashingFile:
    """The file that torch writes to; hashes the content.

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


# Removing


def prune(directory: Path) -> tuple[int, set[str]]:
    """Remove all but the newest KEEP checkpoints, and shards that none of these names.

    If one of these cannot be read, only old checkpoints are removed.

    Returns:
        The arguments of `prune_shards` on another host: how the names of all ranks' files begin.
    """
    for _, old in numbered(directory)[KEEP:]:
        old.unlink(missing_ok=True)
    known = numbered(directory)
    try:
        named = {name for _, path in known for name in companions(path)}
    except Exception:  # of any class: it is damaged, or the disk fails for a moment
        return 0, set()
    newest_number = known[0][0] if known else 0
    prune_shards(directory, newest_number, named)
    return newest_number, {match[1] for match in map(SHARD_NAME.fullmatch, named) if match}


def prune_shards(directory: Path, newest_number: int, named: Set[str]) -> None:
    """Remove the shards up to this number that no checkpoint names; later ones are being written.

    Ranks of one host may do so at the same time.

    Args:
        named: names of files, or their beginnings: the number, and whether they are of the best.
    """
    for path in directory.glob("*.shard"):
        match = SHARD_NAME.fullmatch(path.name)
        if match and int(match[2]) <= newest_number and named.isdisjoint((path.name, match[1])):
            path.unlink(missing_ok=True)


def remove_temporary(directory: Path) -> None:
    """Remove what killed processes left, before any rank of this host writes."""
    for pattern in TEMPORARY:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


# The mark


def mark(directory: Path, end: str, hint: str) -> None:
    """Mark the newest checkpoint as FINISHED or DISCARDED.

    Raises:
        UserError: with this hint: the disk is full or fails.
    """
    newest = newest_path(directory)
    if not newest:
        return
    try:
        with atomic_write(directory / ENDED) as file:
            file.write_text(f"{newest.name} {end}")
    except OSError as error:
        raise UserError(
            f"The run in {directory} could not be marked as {end} ({error.strerror})", hint
        ) from None


def mark_of(path: Path) -> str:
    """FINISHED or DISCARDED if the checkpoint is marked so, else an empty text."""
    file = path.parent / ENDED
    name, _, end = file.read_text().partition(" ") if file.is_file() else ("", "", "")
    return end if name == path.name else ""


# Reading


def read(path: Path, sharded: bool = False, with_best: bool = True) -> dict[str, Any]:
    """The content of a checkpoint and of the files next to it, mapped into memory.

    Args:
        path: a checkpoint that `verified` accepts.
        sharded: leave sharded tensors in their plain form.
        with_best: read the best weights.

    Returns:
        The state, with ``position``, and the best weights or None as ``best_weights``.
    """
    state = torch_files.load(path)
    names = state.pop("files")
    state = shards.join(state, [torch_files.load(path.with_name(n)) for n in names["shards"]])
    state["best_weights"] = None
    if names["best"] and with_best:
        best = [torch_files.load(path.with_name(name)) for name in names["best"]]
        weights = best[0]["weights"]
        state["best_weights"] = shards.join(weights, [one["shard"] for one in best])
    state = state if sharded else shards.whole(state)
    # the run's own objects are needed for `attributes`
    parts = (name for name in state if name != "attributes")
    return {**state, **{name: values.decoded(state[name]) for name in parts}}


def verified(path: Path, with_best: bool = True) -> dict[str, Any]:
    """The content of a checkpoint whose files are as the checksums in their names say.

    Args:
        with_best: verify the files of the best weights, too.

    Raises:
        UserError: it, or a file that it names, is damaged or missing; or it holds a program; or
            another version of this package wrote it.
    """
    _check_checksum(path)
    try:
        content: dict[str, Any] = torch_files.load(path)
        if "files" not in content:
            raise other_version(path)
        kinds = ("shards", "best") if with_best else ("shards",)
        names = [name for kind in kinds for name in content["files"][kind]]
    except UserError:
        raise
    except Exception as error:  # of any class
        raise _damaged(path) from error
    for name in names:
        _check_checksum(path.with_name(name))
    return content


def _check_checksum(path: Path) -> None:
    if not path.is_file() or not digest(path).startswith(path.stem[-16:]):
        raise _damaged(path)


def other_version(path: Path) -> UserError:
    return UserError(
        f"{path} was written by another version of smlightning",
        "finish the run with that version, or train from the start with --resume never",
    )


def _damaged(path: Path) -> UserError:
    if not path.is_file():
        return UserError(
            f"{path} is missing",
            "share the folder of checkpoints between the hosts, copy all of its files to each, or "
            "train from the start with --resume never",
        )
    return UserError(
        f"{path} is damaged or incomplete ({path.stat().st_size} bytes)",
        "copy its files again from where they are whole, S3 for example, or train from the start "
        "with --resume never",
    )


def companions(path: Path) -> list[str]:
    """Names of the files that a checkpoint needs next to it.

    Raises:
        Exception: of any class, if it cannot be read.
    """
    names = torch_files.load(path)["files"]
    return [name for kind in ("shards", "best") for name in names[kind]]


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in ``directory`` with their numbers, newest first."""
    matches = [(NAME.fullmatch(path.name), path) for path in directory.glob("*.ckpt")]
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def next_number(directory: Path) -> int:
    known = numbered(directory)
    return known[0][0] + 1 if known else 1


def newest_path(directory: Path) -> Path | None:
    """The newest checkpoint, which may be damaged."""
    return next((path for _, path in numbered(directory)), None)


def newest_verified(paths: Sequence[Path]) -> tuple[Path, dict[str, Any], bool]:
    """The first undamaged checkpoint, its content, and whether its best weights are undamaged.

    Best weights have one file for several checkpoints: if it is damaged, and no checkpoint has
    other ones, the newest state is used without them. Prints a warning for each fault.

    Args:
        paths: one or more, newest first.

    Raises:
        UserError: all are damaged. Only a person may decide to start again.
    """
    faults = []
    for with_best in (True, False):
        for path in paths:
            try:
                content = verified(path, with_best)
            except UserError as fault:
                faults.append(fault)
                if with_best:
                    print(f"warning: {fault.problem}", file=sys.stderr)
                continue
            if not with_best:
                print(
                    "warning: the run resumes without the best weights so far: the best of the "
                    "validations that follow, or the last weights, are tested and saved",
                    file=sys.stderr,
                )
            return path, content, with_best
    raise UserError(
        f"none of the {len(paths)} checkpoints in {paths[0].parent} can be used: "
        f"{faults[0].problem}",
        faults[0].hint,
    )
