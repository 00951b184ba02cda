"""Labels of tables as classes, and rows for the splits that are missing.

names = class_names(tables)
splits = complete(tables, seed)            # train, validation and test
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlightning.data.sources import SPLITS, Table, check_filled, first_row
from smlightning.errors import UserError

LABEL = "label"
HOLD_OUT = 10  # one row in ten validates, another one tests, if the data has no such split
LARGEST = 50_000  # rows of such a split at most: every epoch waits for its validation
CHUNK = 1 << 18  # rows whose labels are in memory at a time
WRONG_COLUMN = "add rows, or name the right column with --label_column"


def labelled(tables: Iterable[Table]) -> list[Table]:
    """The tables without those for validation or test that have no label, as many public tests.

    Prints which are left out, and what replaces them.

    Raises:
        UserError: a label is missing, or training does not have it; labels differ only in signs
            that are not seen.
    """
    kept: list[Table] = []
    left_out = []
    known: set[str] = set()
    tables = [*tables]
    _check_alike(distinct(tables))
    for table in tables:  # for training first
        found = distinct([table])
        if table.split == "train":
            known |= {*found}
        elif not found:
            left_out.append(table)
            continue
        check_filled(table, LABEL, stripped=True)
        _check_known(table, sorted(known))
        kept.append(table)
    for table in left_out:
        others = any(other.split == table.split for other in kept)
        instead = "the other files are" if others else "a part of the training rows is"
        print(
            f"warning: {table.name} has no label in any row and is left out; "
            f"{instead} the {table.split} split instead",
            file=sys.stderr,
            flush=True,
        )
    return kept


def _check_alike(labels: Iterable[str]) -> None:
    """Reject labels that look equal: in Unicode's forms, with signs without width, as 1 and 1.0."""
    alike: dict[str, str] = {}
    for label in labels:
        seen = [sign for sign in unicodedata.normalize("NFC", label) if not _is_invisible(sign)]
        key = re.sub(r"(?<=\d)\.0+$", "", " ".join("".join(seen).split()))
        key = key.lower() if key.lower() in ("true", "false") else key
        other = alike.setdefault(key, label)
        if other != label:
            shown = f"{other[:40]!a} and {label[:40]!a}"
            raise UserError(f"The labels {shown} look like one", "write it in one way in all rows")


def _is_invisible(sign: str) -> bool:
    """Whether a character has no width, such as a zero-width space."""
    return unicodedata.category(sign) == "Cf"


def distinct(tables: Iterable[Table]) -> list[str]:
    """The labels of tables in order of appearance, without blanks around them."""
    found: dict[str, None] = {}
    for table in tables:
        stripped = pc.utf8_trim_whitespace(table.rows.data.column(LABEL).unique())
        found.update(dict.fromkeys(stripped.to_pylist()))
    return [label for label in found if label]


def _check_known(table: Table, names: list[str]) -> None:
    column = table.rows.data.column(LABEL)
    row = first_row(column, lambda labels: pc.less(codes(labels, names), 0))
    if row is not None:
        raise UserError(
            f"{table.place(row)}: the training split lacks the label {column[row].as_py()[:40]!r}",
            f"add it there, or remove it from the {table.split} split",
        )


def class_names(tables: Iterable[Table]) -> list[str]:
    """The labels of the training tables in order of name; UserError if there is only one."""
    labels = distinct(table for table in tables if table.split == "train")
    if len(labels) < 2:
        problem = f"The data has a single label, {labels[0]!r}; expected two or more"
        raise UserError(problem, WRONG_COLUMN)
    return sorted(labels)


def codes(labels: pa.Array, names: list[str]) -> pa.Array:
    """(N,) int32: the position of each label in ``names``, -1 if it has none."""
    stripped = pc.utf8_trim_whitespace(labels)
    return pc.fill_null(pc.index_in(stripped, pa.array(names, pa.string())), -1)


class Part(NamedTuple):
    """A split: rows, and which of them are of it.

    Attributes:
        numbers: (N,) int8, of each row's split. Splits of the same rows share them: memory grows by
            one byte a row.
        number: of this split.
    """

    rows: datasets.Dataset
    numbers: np.ndarray
    number: int

    def has(self, rows: slice | list[int]) -> np.ndarray:
        """(M,) bool: which of these M rows are of the split."""
        chosen: np.ndarray = self.numbers[rows] == self.number
        return chosen

    def size(self) -> int:
        """Rows of the split; a mask of all rows would take a byte for each."""
        starts = range(0, len(self.numbers), CHUNK)
        return sum(int(np.count_nonzero(self.has(slice(at, at + CHUNK)))) for at in starts)


def complete(tables: list[Table], seed: int) -> dict[str, Part]:
    """All SPLITS; a split that is missing gets rows of the training split.

    Raises:
        UserError: there are too few rows.
    """
    parts = {}
    for split in SPLITS:
        given = [table.rows for table in tables if table.split == split]
        if given:
            rows = datasets.concatenate_datasets(given)
            parts[split] = Part(rows, np.zeros(len(rows), np.int8), 0)
    rows = parts["train"].rows
    names = distinct(table for table in tables if table.split == "train")
    missing = [split for split in SPLITS if split not in parts]
    numbers = np.empty(len(rows), np.int8)
    at = 0
    for chunk in held_out(_chunks(rows, names), len(rows), len(missing), seed):
        numbers[at : at + len(chunk)] = chunk
        at += len(chunk)
    for number, split in enumerate(["train", *missing]):
        parts[split] = Part(rows, numbers, number)
    for split in SPLITS:
        if not parts[split].size():
            problem = (
                f"No row is left for the {split} split: one row of each label stays in "
                f"training, and {len(rows)} rows have {len(names)} labels"
            )
            raise UserError(problem, WRONG_COLUMN)
    return {split: parts[split] for split in SPLITS}


def _chunks(rows: datasets.Dataset, names: list[str]) -> Iterator[np.ndarray]:
    for table in rows.select_columns(LABEL).with_format("arrow").iter(CHUNK):
        yield codes(table[LABEL].combine_chunks(), names).to_numpy()


def held_out(
    labels: Iterable[np.ndarray], rows: int, missing: int, seed: int
) -> Iterator[np.ndarray]:
    """The number of each row's split, chunk by chunk of its labels: 0 for training.

    Each of the ``missing`` splits gets one in HOLD_OUT rows of each label, and at most LARGEST rows
    in all. Training keeps the others, and at least one row of each label. (`datasets` does not
    stratify if a label occurs once.)
    """
    step = max(HOLD_OUT, -(-rows // LARGEST))
    rng = np.random.default_rng(seed)
    known: set[int] = set()
    passed = 0  # rows of earlier chunks that another split could get
    for chunk in labels:
        order = rng.permutation(len(chunk))
        order = order[np.argsort(chunk[order], kind="stable")]  # by label, within one at random
        is_first = np.diff(chunk[order], prepend=-1) > 0
        kept = is_first & ~np.isin(chunk[order], [*known])
        known.update(chunk.tolist())
        order = order[~kept]
        split = np.zeros(len(chunk), np.int8)
        for number in range(missing):
            split[order[(number - passed) % step :: step]] = number + 1
        yield split
        passed += len(order)
