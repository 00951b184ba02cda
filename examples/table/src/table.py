"""Rows of text as numbers: the statistics of the training rows, which the model keeps.

columns = Columns.of(rows, options)        # of the training rows
numbers, words = columns.encode(rows)      # of any rows, in predict.py too
json.dumps(asdict(columns))                # lies next to the weights
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from options import Options, names
from smlightning.errors import UserError

Rows = Mapping[str, Sequence[str]]  # a column's name → its values; an unknown one is empty
LENGTH = 16  # words of a text that are read


@dataclass(frozen=True)
class Columns:
    """The columns of a table, as the training rows have them.

    Attributes:
        numbers: name → mean and standard deviation of the training rows.
        texts: names.
        target: the name of the column to predict.
        labels: names of the classes in order; of a regression, none.
        scale: mean and standard deviation of the training targets; of classes, 0 and 1.
        buckets: a word has a number from 1 to this.
    """

    numbers: dict[str, tuple[float, float]]
    texts: list[str]
    target: str
    labels: list[str]
    scale: tuple[float, float]
    buckets: int

    @classmethod
    def of(cls, rows: Rows, options: Options) -> "Columns":
        """The columns of the training rows.

        Raises:
            UserError: a value is no number, or there is a single class.
        """
        target, labels, scale = rows[options.target], [], (0.0, 1.0)
        if options.task == "regression":
            scale = statistics(parsed(target, options.target, needed=True))
        else:
            if not all(target):
                problem = f"column {options.target!r} has empty values, and is the target"
                raise UserError(problem, "remove their rows, or write a class")
            labels = sorted(set(target))
            if len(labels) < 2:
                problem = f"column {options.target!r} has the single class {labels[0]!r}"
                raise UserError(problem, "name another column with --target")
        numbers = {name: statistics(parsed(rows[name], name)) for name in names(options.numbers)}
        texts = names(options.texts)
        return cls(numbers, texts, options.target, labels, scale, options.buckets)

    def encode(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """N rows → (N, 2 × numbers) float32, (N, texts, LENGTH) int64.

        A number is in standard deviations from the mean, and 0 if it is unknown; a second one says
        whether it is known. A word is the number of its bucket; 0 fills shorter texts.
        """
        count = len(next(iter(rows.values())))
        found = np.zeros((count, 2 * len(self.numbers)), np.float32)
        for place, (name, (mean, deviation)) in enumerate(self.numbers.items()):
            values = parsed(rows[name], name)
            known = ~np.isnan(values)
            found[known, 2 * place] = (values[known] - mean) / deviation
            found[:, 2 * place + 1] = known
        words = torch.zeros(count, len(self.texts), LENGTH, dtype=torch.long)
        for place, name in enumerate(self.texts):
            for row, text in enumerate(rows[name]):
                numbers = [self.bucket(place, word) for word in text.lower().split()[:LENGTH]]
                words[row, place, : len(numbers)] = torch.tensor(numbers, dtype=torch.long)
        return torch.from_numpy(found), words

    def bucket(self, place: int, word: str) -> int:
        """The number of a column's word, the same in each process."""
        return zlib.crc32(f"{place} {word}".encode()) % self.buckets + 1

    def targets(self, rows: Rows) -> torch.Tensor:
        """(N,) float32 in standard deviations from the mean, or int64 classes.

        Raises:
            UserError: the training rows lack a class, or a value is no number.
        """
        values = rows[self.target]
        if not self.labels:
            mean, deviation = self.scale
            found = (parsed(values, self.target, needed=True) - mean) / deviation
            return torch.from_numpy(found.astype(np.float32))
        if unknown := {*values} - {*self.labels}:
            problem = f"the training rows lack the class {unknown.pop()!r} of {self.target!r}"
            raise UserError(problem, "add rows of it, or remove it from validation and test")
        return torch.tensor([self.labels.index(value) for value in values])


def parsed(values: Sequence[str], name: str, needed: bool = False) -> np.ndarray:
    """(N,) float64; an empty value is unknown, NaN.

    Raises:
        UserError: a value is no finite number, or an empty one is ``needed``.
    """
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value.strip() or needed:
            try:
                found[row] = float(value)
            except ValueError:
                found[row] = math.inf
    if wrong := np.flatnonzero(np.isinf(found) | (np.isnan(found) & needed)).tolist():
        problem = f"column {name!r}: found {values[wrong[0]]!r}, expected a finite number"
        raise UserError(problem, "correct it; an unknown number is empty, and no target is unknown")
    return found


def statistics(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the known values; 0 and 1 where they say nothing."""
    known = values[~np.isnan(values)]
    if not len(known):
        return 0.0, 1.0
    return float(known.mean()), float(known.std()) or 1.0
