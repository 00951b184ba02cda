"""A folder of flat files that is built once per node, complete or not there at all, and verified before it is used.

prepare(path, build, "rows")  # in one process per node; `build` writes arrays with `write`
facts = read(path)            # in every process
rows = Rows(path, "train")    # memory-mapped: rows.arrays["ids"], rows.index
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa

from runtime import readers
from runtime.report import UserError, ensure_dir, error_chain

META = "meta.json"
STAMP = "verified.json"  # sizes and times of the files when they were hashed
CHUNK = 1 << 18  # elements of an array that are worked on at a time
HOLD_OUT = 10  # one row in ten validates, another one in ten tests,
MANY = 1_000  # rows of which most have a class of their own: these are no classes
LARGEST = 50_000  # but at most so many rows each: more would tell little more, and every epoch waits for them


def prepare(path: Path, build: Callable[[Path], dict[str, Any]], what: str) -> None:
    """Have ``path`` built, unless a verified copy is there, and say how many of ``what`` it holds.

    It is built beside its place and renamed into it when complete, so a process that is killed leaves nothing that
    looks finished; a second process waits at the lock, which the system lets go of when its owner ends.

    Args:
        build: writes files into the folder that it is given, and returns facts for :func:`read`, plain JSON: ``sizes``,
            how many rows each split has, and any others.

    Raises:
        UserError: the disk is full, or no folder or lock can be made there; and whatever ``build`` raises.
    """
    from filelock import FileLock

    building = ensure_dir(path.parent) / f".{path.name}"
    try:
        held = FileLock(f"{path}.lock").acquire()
    except (NotImplementedError, OSError) as error:  # filelock 3 and 4 on some network file systems
        raise UserError(
            f"No file can be locked in {path.parent} ({error}); set --data_dir to another folder."
        ) from None
    with held:
        if verified(path):
            return
        started = time.perf_counter()
        shutil.rmtree(building, ignore_errors=True)  # of one that was killed
        try:
            building.mkdir()
            facts = build(building)
            files = sorted(_stamps(building))
            for name in files:
                with (building / name).open("r+b") as file:
                    os.fsync(file.fileno())  # or, after a power failure, a file might be empty and its stamp right
            meta = {**facts, "files": {name: digest(building / name) for name in files}}
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
        sizes = facts["sizes"]
        parts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        seconds = time.perf_counter() - started
        print(f"prepare_data: {sum(sizes.values()):,} {what} ({parts}) in {path}, {seconds:.1f} s", flush=True)


def read(path: Path) -> dict[str, Any]:
    """The facts that ``build`` returned; ``digest`` is a function of these and of the content of all files."""
    return json.loads((path / META).read_text())


def verified(path: Path) -> bool:
    """Whether a complete copy is at ``path`` that nobody touched since it was written; no file's content is read."""
    try:
        return json.loads((path / STAMP).read_text()) == _stamps(path)
    except (OSError, ValueError):
        return False


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Size and times of change of each file; whoever changes its content cannot set the second time back."""
    files = {str(p.relative_to(folder)): p.stat() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: [s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in files.items() if name != STAMP}


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
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


def arrays(folder: Path, mode: Literal["r", "r+"] = "r") -> dict[str, np.ndarray]:
    """What :func:`write` wrote into ``folder``, by name, memory-mapped: all ranks of a node share one copy."""
    return {f.stem: np.memmap(f, f.suffix[1:], mode).view(np.ndarray) for f in folder.iterdir() if f.stat().st_size}


def chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of ``values``, so that what is made of them needs little memory."""
    return (values[at : at + CHUNK] for at in range(0, len(values), CHUNK))


class Rows:
    """The rows of a split, memory-mapped.

    Attributes:
        arrays: by name, of the folder called as the split, or of ``train`` where there is none.
        index: (N,) which rows of these arrays are the split's: the array called as the split in the folder ``rows``.
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
        return np.concatenate([self.arrays[name][rows] for rows in chunks(self.index)])


def write_classified(
    directory: Path,
    splits: Mapping[str, readers.Pieces],
    encode: Callable[[pa.Array], tuple[np.ndarray, np.ndarray]],
    seed: int,
    names: tuple[str, str],
) -> tuple[list[str], dict[str, int]]:
    """Write strings, encoded, and their classes for :class:`Rows`; returns the classes' names and the splits' sizes.

    Arrays: ``ids`` of all strings in a row; ``starts`` and ``lengths`` of each; ``classes``, numbers from 0 in order of
    name. What is missing of ``val`` and ``test`` is held out of ``train``.

    Args:
        splits: of `readers.read`, strings and their classes, called ``names`` in errors.
        encode: strings → the ids of all in a row, and how many each has.

    Raises:
        UserError: a value is missing, a class does not occur in training, or a split is empty.
    """
    codes: dict[str, int] = {}  # in order of first appearance
    for split, parts in splits.items():
        known = len(codes)
        write(directory / split, _encode(split, parts, encode, codes, names[0]))
        _check_classes(directory / split, [*codes], known, names[1])
    classes = sorted(codes)
    number = {name: i for i, name in enumerate(classes)}
    final = np.array([number[name] for name in codes], np.int32)
    sizes = dict.fromkeys(("train", "val", "test"), 0)
    given = [split for split in sizes if (directory / split).exists()]
    for split in given:
        written = arrays(directory / split, "r+")["classes"]
        for piece in chunks(written):
            piece[:] = final[piece]
        missing = [name for name in sizes if split == "train" and name not in given]
        sizes |= write(directory / "rows", split_rows(written, [split, *missing], seed))
    for split in (split for split, size in sizes.items() if not size):
        raise UserError(
            f"The {split} split is empty: too few rows for {len(classes)} classes; add some, or a file for it."
        )
    return classes, sizes


def _encode(
    split: str, parts: readers.Pieces, encode: Callable, codes: dict[str, int], name: str
) -> Iterator[dict[str, np.ndarray]]:
    rows = elements = 0
    for strings, classes in parts:
        ids, lengths = encode(readers.check_strings(strings, name, split, rows))
        starts = elements + np.cumsum(lengths, dtype=np.int64) - lengths
        yield {"ids": ids, "starts": starts, "lengths": lengths.astype(np.uint32), "classes": _codes(classes, codes)}
        rows, elements = rows + len(lengths), elements + len(ids)


def _name(value: Any) -> str:
    """A class's name: 1.0, which pandas makes of 1 where a value is missing, is 1."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _codes(values: pa.Array, codes: dict[str, int]) -> np.ndarray:
    """Each value's code, (N,) int32, which new values are given; -1 where it is null, empty or NaN."""
    if pa.types.is_nested(values.type):
        raise UserError(f"A class is {values[0].as_py()!r}, a {values.type}; expected text or a number.")
    coded = values.dictionary_encode()
    found = [
        -1 if v in (None, "") or v != v else codes.setdefault(_name(v), len(codes))
        for v in coded.dictionary.to_pylist()
    ]
    return np.array([*found, -1], np.int32)[coded.indices.fill_null(len(found)).to_numpy()]


def _check_classes(folder: Path, names: list[str], known: int, column: str) -> None:
    """Refuse or remove a split where classes are missing; ``names`` from ``known`` on were not seen before it."""
    split, written = folder.name, arrays(folder).get("classes")
    if written is None:
        raise UserError(f"The {split} split is empty; give at least one row.")
    if split != "train" and written.max() < 0:
        shutil.rmtree(folder)  # a public test set whose classes are kept secret tests nothing here
    elif written.min() < 0:
        row = written.argmin() + 1
        raise UserError(f"Row {row} of the {split} split has no {column}; expected one; correct or remove it.")
    elif split == "train" and len(written) >= MANY and 2 * len(names) > len(written):
        raise UserError(
            f"The {column} has {len(names):,} different values in {len(written):,} rows of the train split, so it "
            f"names no classes; name the right column with --{column}_column."
        )
    elif split == "train" and len(names) < 2:
        raise UserError(f"The data has a single class, {names[0]!r}; two or more are needed.")
    elif split != "train" and (new := names[known:]):
        raise UserError(f"The {column} {new[0]!r} of the {split} split does not occur in training; add or remove it.")


def split_rows(codes: np.ndarray, splits: Sequence[str], seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Row numbers of each of ``splits``, in parts: those held out for ``val`` and ``test``; all others for the first.

    Of each class one row in HOLD_OUT is held out for each, or fewer, so that they are at most LARGEST: a function of
    ``seed`` and ``codes``, (N,) classes from 0. A class's first row is not, so that training knows all classes.
    (`datasets` refuses to stratify where a class occurs once, and real data has those.)
    """
    counts = np.zeros(int(codes.max()) + 1, np.int64)
    for piece in chunks(codes):
        counts += np.bincount(piece, minlength=len(counts))
    # Think of the rows in order of class, without each class's first. Of every `step` of them, the first is for `val`
    # and the second for `test`. Within a class, `step` rows at a time are rotated by a random number.
    rest = counts - (counts > 0)
    begin = np.cumsum(rest) - rest
    step = max(HOLD_OUT, -(-int(rest.sum()) // LARGEST))
    random = np.random.default_rng(seed).integers(1 << 30, size=1 << 16)
    seen, at = np.zeros_like(counts), 0
    for piece in (part.astype(np.int64) for part in chunks(codes)):
        many = np.bincount(piece, minlength=len(counts))
        before = np.empty_like(piece)  # how many rows of its class come before a row
        before[np.argsort(piece, kind="stable")] = np.arange(len(piece)) - np.repeat(np.cumsum(many) - many, many)
        before += seen[piece]
        block = (before - 1) // step
        size = np.clip(rest[piece] - block * step, 1, step)
        shifted = (before - 1 - block * step + random[(piece * 40_503 + block) % len(random)]) % size
        place = np.where(before > 0, (begin[piece] + block * step + shifted) % step, -1)
        held = {name: place == i for i, name in enumerate(("val", "test")) if name in splits[1:]}
        held[splits[0]] = ~sum(held.values(), np.zeros(len(piece), bool))
        numbers = np.arange(at, at + len(piece), dtype=np.min_scalar_type(len(codes)))
        yield {name: numbers[mine] for name, mine in held.items()}
        seen, at = seen + many, at + len(piece)
