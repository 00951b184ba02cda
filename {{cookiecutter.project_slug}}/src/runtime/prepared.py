"""A folder of flat files that is built once per node, complete or not there at all, and verified before it is used.

seconds = prepare(path, build)        # in one process per node; `build` writes arrays with `write`
facts = read(path)                    # in every process
rows = Rows(path, "train")            # memory-mapped: rows.arrays["ids"], rows.index
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from runtime.report import UserError, ensure_dir, error_chain

META = "meta.json"
STAMP = "verified.json"  # sizes and times of the files when they were last hashed
CHUNK = 1 << 20  # elements that are read at a time


def prepare(path: Path, build: Callable[[Path], dict[str, Any]]) -> float | None:
    """Have ``path`` built, unless a verified copy is there; the seconds that it took, or None where nothing was done.

    It is built beside its place and renamed into it when complete, so a process that is killed leaves nothing that
    looks finished; a second process waits at the lock, which the system lets go of when its owner ends.

    Args:
        build: writes files into the folder that it is given, and returns facts for :func:`read`, plain JSON.

    Raises:
        UserError: the disk is full, or no folder can be made there; and whatever ``build`` raises.
    """
    from filelock import FileLock

    building = ensure_dir(path.parent) / f".{path.name}"
    with FileLock(f"{path}.lock"):
        if verified(path):
            return None
        started = time.perf_counter()
        shutil.rmtree(building, ignore_errors=True)  # of one that was killed
        try:
            building.mkdir()
            facts = build(building)
            meta = {**facts, "files": {name: digest(building / name, sync=True) for name in _stamps(building)}}
            (building / META).write_text(json.dumps({**meta, "digest": json_digest(meta)}))
            (building / STAMP).write_text(json.dumps(_stamps(building)))
            shutil.rmtree(path, ignore_errors=True)  # a copy that failed its check
            building.replace(path)
        except Exception as error:
            if any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in error_chain(error)):
                raise UserError(f"No space left while writing {path}; free some or set --data_dir.") from None
            raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return time.perf_counter() - started


def read(path: Path) -> dict[str, Any]:
    """The facts that ``build`` returned; ``digest`` is a function of these and of the content of all files."""
    return json.loads((path / META).read_text())


def verified(path: Path) -> bool:
    """Whether a complete copy is at ``path``, to the byte; files that nobody touched since then are not read."""
    try:
        stamps = _stamps(path)
        with contextlib.suppress(OSError, ValueError):
            if json.loads((path / STAMP).read_text()) == stamps:
                return True
        meta = read(path)
        files = meta["files"]
        whole = meta.pop("digest") == json_digest(meta) and all(digest(path / f) == files[f] for f in files)
    except (OSError, ValueError, KeyError):
        return False
    if whole:
        with contextlib.suppress(OSError):
            (path / STAMP).write_text(json.dumps(stamps))
    return whole


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Size and times of change of each file; a change of its content sets the second time whatever a person sets."""
    files = {str(p.relative_to(folder)): p.stat() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: [s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in files.items() if name != STAMP}


def digest(path: Path, sync: bool = False) -> str:
    """SHA-256 of a file, in hexadecimal digits; with ``sync``, of what is surely on the disk."""
    with path.open("r+b" if sync else "rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(facts: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def write(folder: Path, pieces: Iterable[Mapping[str, np.ndarray]]) -> dict[str, int]:
    """Write arrays of one dimension, by name, piece after piece; returns how many elements each came to have.

    An array's file is named after it and the type of its first piece, ``ids.uint8``, and holds nothing but elements.
    """
    sizes: dict[str, int] = {}
    files: dict[str, tuple[np.dtype, BinaryIO]] = {}
    ensure_dir(folder)
    with contextlib.ExitStack() as stack:
        for name, values in (item for piece in pieces for item in piece.items()):
            if name not in files:
                files[name] = values.dtype, stack.enter_context((folder / f"{name}.{values.dtype}").open("wb"))
            dtype, file = files[name]
            file.write(np.ascontiguousarray(values, dtype).data)
            sizes[name] = sizes.get(name, 0) + len(values)
    return sizes


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """What :func:`write` wrote into ``folder``, by name, memory-mapped: all ranks of a node share one copy."""
    return {f.stem: np.memmap(f, f.suffix[1:], "r").view(np.ndarray) for f in folder.iterdir() if f.stat().st_size}


class Rows:
    """The rows of a split, memory-mapped. Their arrays lie in a folder of the split's name, or among ``train``'s.

    Attributes:
        arrays: by name.
        index: (N,) which rows of the arrays are the split's; the array of the split's name in the folder ``rows``.
    """

    def __init__(self, path: Path, split: str) -> None:
        self.path, self.split = path, split
        self.arrays = arrays(path / split if (path / split).exists() else path / "train")
        self.index = arrays(path / "rows")[split]

    def __len__(self) -> int:
        return len(self.index)

    def __reduce__(self) -> Any:
        return Rows, (self.path, self.split)  # a loader worker that is spawned maps the files anew

    def column(self, name: str) -> np.ndarray:
        """(N,) one array's values for the split's rows, in memory."""
        values = np.empty(len(self), self.arrays[name].dtype)
        for at in range(0, len(self), CHUNK):  # numpy makes an index of eight bytes a row
            values[at : at + CHUNK] = self.arrays[name][self.index[at : at + CHUNK]]
        return values
