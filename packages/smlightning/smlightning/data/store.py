"""A folder of flat arrays, built once per node, either complete or missing, and memory-mapped.

    with prepare(path, "texts") as folder:   # in one process per node
        if folder:                           # None: the data is there
            write(folder / "train", pieces)
            write(folder / INDEX, [{"train": row_numbers}])
            write_facts(folder, {"labels": ["a", "b"]})

    facts = read_facts(path)                 # in every process
    rows = Rows(path, "train")               # memory-mapped: rows.arrays["ids"]

The meaning of the arrays is the caller's.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from smlightning.errors import UserError
from smlightning.files import digest, ensure_dir, json_digest

FACTS = "facts.json"
DIGESTS = "digests.json"  # of the content of all other files
STAMPS = "stamps.json"  # sizes and times of all other files after their digests
INDEX = "rows"  # the folder of the splits' row numbers
SPLITS = ("train", "val", "test")
CHUNK = 1 << 18  # elements of an array in memory at a time


def path_for(data_dir: str, name: str, facts: Any) -> Path:
    """The folder for the data with this name; other ``facts``, plain data, give another folder."""
    readable = "".join(c if c.isalnum() else "-" for c in Path(name).name)[:40]
    return Path(data_dir) / f"{readable}-{json_digest(facts)[:12]}"


# Building -------------------------------------------------------------------------------------


@contextlib.contextmanager
def prepare(path: Path, unit: str) -> Iterator[Path | None]:
    """A folder to build the data of ``path`` in; None if it is there, complete and unchanged.

    Prints the number of ``unit`` in each split afterwards.

    The folder is next to ``path`` and gets its name when the block ends, so data of a killed
    process never looks complete. A second process waits for the lock, which the system releases
    when its owner ends.

    Raises:
        UserError: no folder or lock can be made there.
    """
    building = ensure_dir(path.parent) / f".{path.name}"
    with _locked(path):
        if is_complete(path):
            yield None
            return
        started = time.perf_counter()
        shutil.rmtree(building, ignore_errors=True)  # left by a killed process
        try:
            building.mkdir()
            yield building
            _seal(building)
            shutil.rmtree(path, ignore_errors=True)  # incomplete, or changed since
            building.replace(path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        seconds = time.perf_counter() - started
    sizes = {split: len(numbers) for split, numbers in arrays(path / INDEX).items()}
    parts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
    for name, value in read_facts(path).items():
        if isinstance(value, list):  # labels, say: their number shows a wrong column
            parts += f"; {len(value):,} {name}"
    print(
        f"prepare_data: {sum(sizes.values()):,} {unit} ({parts}) in {path}, {seconds:.1f} s",
        flush=True,
    )


def _locked(path: Path) -> Any:
    """A context manager that holds the lock of ``path``."""
    from filelock import FileLock

    try:
        return FileLock(f"{path}.lock").acquire()
    except (NotImplementedError, OSError) as error:  # filelock 3 and 4 on some network file systems
        problem = f"No file can be locked in {path.parent} ({error})"
        raise UserError(problem, "set --data_dir to another folder") from None


def write(folder: Path, pieces: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Write arrays of one dimension, by name, piece after piece.

    A file contains only the elements; its name is the array's and the type of the first piece:
    ``ids.uint8``.
    """
    types: dict[str, np.dtype] = {}
    files: dict[str, BinaryIO] = {}
    ensure_dir(folder)
    with contextlib.ExitStack() as stack:
        for piece in pieces:
            for name, values in piece.items():
                if name not in files:
                    file = (folder / f"{name}.{values.dtype}").open("wb")
                    files[name] = stack.enter_context(file)
                    types[name] = values.dtype
                files[name].write(np.ascontiguousarray(values, types[name]).data)


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write plain data for `read_facts`."""
    (folder / FACTS).write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")


def _seal(folder: Path) -> None:
    """Flush all files to the disk, and write their digests and stamps."""
    files = sorted(_stamps(folder))
    for name in files:
        with (folder / name).open("r+b") as file:
            # Otherwise a file might be empty after a power failure, with a right stamp.
            os.fsync(file.fileno())
    digests = {name: digest(folder / name) for name in files}
    (folder / DIGESTS).write_text(json.dumps(digests))
    (folder / STAMPS).write_text(json.dumps(_stamps(folder)))


# Using ----------------------------------------------------------------------------------------


def is_complete(path: Path) -> bool:
    """Whether ``path`` holds a complete and unchanged copy; reads no file's content."""
    try:
        return json.loads((path / STAMPS).read_text()) == _stamps(path)
    except (OSError, ValueError):
        return False


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Each file's size and two times; a program can set back the first, but not the second."""
    stamps = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != STAMPS:
            status = path.stat()
            stamps[name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return stamps


def read_facts(path: Path) -> dict[str, Any]:
    """The plain data of `write_facts`."""
    return json.loads((path / FACTS).read_text(encoding="utf-8"))


def fingerprint(path: Path) -> str:
    """A digest of the facts and of the content of all arrays, equal on all nodes."""
    return json_digest(json.loads((path / DIGESTS).read_text()))


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of `write`, by name, memory-mapped: all ranks of a node share one copy."""
    opened = {}
    for file in sorted(folder.glob("*")):
        if file.stat().st_size:  # an empty file cannot be mapped
            opened[file.stem] = np.memmap(file, file.suffix[1:], "r").view(np.ndarray)
    return opened


def chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive parts of ``values`` of at most CHUNK elements, to save memory."""
    for at in range(0, len(values), CHUNK):
        yield values[at : at + CHUNK]


class Rows:
    """The rows of a split, memory-mapped.

    Attributes:
        arrays: by name, from the split's folder, or from ``train`` if it has none.
        index: (N,) the split's row numbers in these arrays, from the folder INDEX.
    """

    def __init__(self, path: Path, split: str) -> None:
        self.path = path
        self.split = split
        self.arrays = arrays(path / split) or arrays(path / "train")
        self.index = arrays(path / INDEX)[split]

    def __len__(self) -> int:
        return len(self.index)

    def __reduce__(self) -> tuple[Any, ...]:
        """A spawned loader worker maps the files anew."""
        return Rows, (self.path, self.split)

    def column(self, name: str) -> np.ndarray:
        """(N,) one array's values for the split's rows, in memory."""
        values = self.arrays[name]
        return np.concatenate([values[rows] for rows in chunks(self.index)])
