"""Batches from the Arrow columns of a `datasets.Dataset`, whose values are not copied.

    tokens = Lists(rows, "input_ids")
    input_ids, mask = tokens.pad(np.array([7, 0, 3]), fill=0)

`datasets` itself makes a Python object of every value, or a tensor of every row.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch

from smlightning.data import batches


class Lists:
    """A column of lists of integers in a file of Arrow record batches, memory-mapped.

    A row's list begins at an offset among the values of its record batch. Both the offsets and the
    values of all record batches are views of one mapping of the file.

    Args:
        rows: of `datasets.Dataset.from_file`.
        name: of the column.

    Attributes:
        lengths: (N,) uint32: of each row's list.
    """

    def __init__(self, rows: datasets.Dataset, name: str) -> None:
        self.rows, self.name = rows, name
        file = rows.cache_files[0]["filename"]
        mapped = pa.memory_map(file).read_buffer()
        parts = [batch.column(name) for batch in pa.ipc.open_stream(mapped) if len(batch)]
        value_type = rows.features[name].feature.dtype
        self.values = np.frombuffer(mapped, value_type)
        self.offsets = np.frombuffer(mapped, np.int32)
        self.first_rows = np.cumsum([0, *map(len, parts)])
        self.first_offsets = np.array([self._index(part.offsets, mapped) for part in parts])
        self.first_values = np.array([self._index(part.values, mapped) for part in parts])
        lengths = [np.diff(part.offsets).astype(np.uint32) for part in parts]
        self.lengths = np.concatenate([np.zeros(0, np.uint32), *lengths])

    @staticmethod
    def _index(array: pa.Array, mapped: pa.Buffer) -> int:
        """The index of an array's first value in the mapping, counted in values."""
        at = array.buffers()[1].address - mapped.address
        return at // (array.type.bit_width // 8) + array.offset

    def __reduce__(self) -> tuple[Any, ...]:
        """A spawned loader worker maps the file anew."""
        return Lists, (self.rows, self.name)

    def pad(self, numbers: np.ndarray, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
        """B rows → (B, longest) int64, padded on the right, and its mask.

        Args:
            numbers: (B,) of the rows.
            fill: the value that pads shorter rows.
        """
        part = np.searchsorted(self.first_rows, numbers, "right") - 1
        offsets = self.offsets[self.first_offsets[part] + numbers - self.first_rows[part]]
        starts = self.first_values[part] + offsets
        return batches.pad(self.values, starts, self.lengths[numbers], fill)


def numbers(rows: datasets.Dataset, name: str) -> np.ndarray:
    """(N,) a column of numbers."""
    return rows.data.column(name).to_numpy()


def lists(values: np.ndarray, lengths: Sequence[int] | np.ndarray) -> pa.ListArray:
    """Lists of these lengths, of consecutive values, as a column."""
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, values)
