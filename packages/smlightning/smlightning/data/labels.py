"""Labels: encoded as numbers in order of name; rows for the missing splits.

labels = Labels()
store.write(folder / "train", labels.encode(pieces, "train"))   # pieces: text.encode
names = labels.split(folder, seed)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smlightning.data import store
from smlightning.data.store import SPLITS
from smlightning.data.tables import Piece
from smlightning.errors import UserError

HOLD_OUT = 10  # one row in ten validates, another one tests, if the data has no such split
LARGEST = 50_000  # rows of such a split at most: every epoch waits for its validation


class Labels:
    """The labels of all splits, training first.

    Attributes:
        codes: number of each label in order of appearance.
    """

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def encode(
        self, pieces: Iterator[tuple[dict[str, np.ndarray], Piece]], split: str
    ) -> Iterator[dict[str, np.ndarray]]:
        """Arrays for the store with the codes of the labels, the second column.

        A test or validation split without any label is left out, as many public tests have none.

        Raises:
            UserError: a label is missing, or training does not have it.
        """
        known = len(self.codes)
        missing = ""  # the first row without a label
        has_labels = False
        for arrays, piece in pieces:
            codes = self._codes_of(piece)
            if codes.min() < 0:
                missing = missing or piece.place(int(codes.argmin()))
            has_labels = has_labels or codes.max() >= 0
            if missing and (has_labels or split == "train"):
                raise UserError(
                    f"{missing}: the label is missing; expected one", "correct or remove the row"
                )
            if not has_labels:
                continue
            if split != "train" and codes.max() >= known:
                row = int(codes.argmax())
                label = repr([*self.codes][codes[row]][:40])
                problem = f"{piece.place(row)}: the training split lacks the label {label}"
                raise UserError(problem, f"add it there, or remove it from the {split} split")
            yield {**arrays, "codes": codes}

    def _codes_of(self, piece: Piece) -> np.ndarray:
        """(N,) int32: the code of each label, -1 if it is null, empty or NaN; adds new labels."""
        values = piece.columns[1]
        is_bytes = "binary" in str(values.type)  # of any length, or a view
        is_extension = isinstance(values.type, pa.BaseExtensionType)
        if is_bytes or is_extension or pa.types.is_nested(values.type):
            problem = f"{piece.place(0)}: the label is {str(values.type)[:40]}"
            hint = "write the column as text, or choose another one with --label_column"
            raise UserError(f"{problem}; expected text or a number", hint)
        encoded = values.dictionary_encode()
        codes = [self._code_of(value) for value in encoded.dictionary.to_pylist()]
        codes.append(-1)  # of null
        indices = encoded.indices.fill_null(len(codes) - 1).to_numpy()
        return np.array(codes, np.int32)[indices]

    def _code_of(self, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas makes 1.0 of 1 if another value is missing
        name = str(value).strip()  # " yes" and "yes" are one label
        if value is None or not name or value != value:
            return -1
        return self.codes.setdefault(name, len(self.codes))

    def split(self, folder: Path, seed: int) -> list[str]:
        """Store the labels and the rows of each split; returns the names of the labels, sorted.

        Missing splits get rows from the training split.

        Raises:
            UserError: there are too few rows or labels.
        """
        names = sorted(self.codes)
        wrong_column = "add rows, or name the right column with --label_column"
        if len(names) < 2:
            problem = f"The data has a single label, {names[0]!r}; expected two or more"
            raise UserError(problem, wrong_column)
        numbers = np.empty(len(names), np.int32)
        numbers[[self.codes[name] for name in names]] = np.arange(len(names))
        stored = {split: store.arrays(folder / split) for split in SPLITS}
        missing = [split for split in SPLITS if not stored[split]]
        for split, arrays in stored.items():
            if arrays:
                codes = arrays["codes"]
                labels = ({"labels": numbers[chunk]} for chunk in store.chunks(codes))
                store.write(folder / split, labels)
                splits = ["train", *missing] if split == "train" else [split]
                store.write(folder / store.INDEX, split_rows(codes, splits, seed))
        index = store.arrays(folder / store.INDEX)
        for split in SPLITS:
            if split not in index:
                count = len(stored["train"]["codes"])
                problem = (
                    f"No row is left for the {split} split: one row of each label stays in "
                    f"training, and {count} rows have {len(names)} labels"
                )
                raise UserError(problem, wrong_column)
        return names


def split_rows(labels: np.ndarray, splits: list[str], seed: int) -> Iterator[dict[str, np.ndarray]]:
    """The row numbers of each of ``splits``, chunk by chunk.

    Each split but the first gets one in HOLD_OUT rows of each label, and at most LARGEST rows in
    all. The first gets the others, and at least one row of each label, so that training has every
    label. (`datasets` does not stratify if a label occurs once.)
    """
    step = max(HOLD_OUT, -(-len(labels) // LARGEST))
    smallest = np.min_scalar_type(len(labels))  # every rank holds these numbers
    rng = np.random.default_rng(seed)
    known = np.zeros(labels.max() + 1, bool)
    first_row = passed = 0  # of the chunk; rows before it that another split could get
    for chunk in store.chunks(labels):
        order = rng.permutation(len(chunk))
        order = order[np.argsort(chunk[order], kind="stable")]  # by label, within one at random
        ordered = chunk[order]
        kept = (np.diff(ordered, prepend=-1) > 0) & ~known[ordered]
        known[ordered] = True
        order = order[~kept]
        split = np.zeros(len(chunk), np.int8)
        for number in range(1, len(splits)):
            split[order[(number - 1 - passed) % step :: step]] = number
        rows = {name: np.flatnonzero(split == i) + first_row for i, name in enumerate(splits)}
        yield {name: numbers.astype(smallest) for name, numbers in rows.items()}
        first_row += len(chunk)
        passed += len(order)
