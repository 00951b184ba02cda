"""Batches of a column of lists are gathered from every record batch of its file."""

import copy

import datasets
import numpy as np
import pytest

from smlightning.data import columns


def stored(lists: list[list[int]], kind: str, batch: int = 3) -> datasets.Dataset:
    """Rows in a file, ``batch`` of them in a record batch."""
    features = datasets.Features(
        label=datasets.Value("int64"), ids=datasets.List(datasets.Value(kind))
    )
    content = {"ids": lists, "label": list(range(len(lists)))}
    rows = datasets.Dataset.from_dict(content, features=features)
    rows.map(lambda row: row, cache_file_name="./made/rows.arrow", writer_batch_size=batch)
    return datasets.Dataset.from_file("./made/rows.arrow")


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "int64"])
def test_rows_of_every_type_are_padded(kind: str) -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(1, 200, rng.integers(1, 9)).tolist() for _ in range(20)]
    rows = stored(lists, kind)
    column = columns.Lists(rows, "ids")
    assert len(column.first_rows) == 8, "seven record batches"
    assert column.lengths.tolist() == [*map(len, lists)]
    for each in (column, copy.copy(column)):  # by __reduce__, as for a spawned loader worker
        chosen = rng.permutation(20)[:7]
        padded, mask = each.pad(chosen, fill=-1)
        assert padded.shape == mask.shape == (7, max(len(lists[row]) for row in chosen))
        for row, values, real in zip(chosen, padded.tolist(), mask.tolist(), strict=True):
            size = len(lists[row])
            assert values == lists[row] + [-1] * (len(values) - size)
            assert real == [1] * size + [0] * (len(values) - size)
    assert columns.numbers(rows, "label").tolist() == list(range(20))


def test_values_are_views_of_the_file() -> None:
    column = columns.Lists(stored([[1], [2, 3]], "uint8"), "ids")
    assert not column.values.flags.owndata and not column.values.flags.writeable


def test_lists_are_made_of_values_and_lengths() -> None:
    made = columns.lists(np.arange(6, dtype=np.uint8), np.array([3, 1, 2], np.uint32))
    assert made.to_pylist() == [[0, 1, 2], [3], [4, 5]]
