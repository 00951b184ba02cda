"""Labels are numbered by name, and rows are held out by label and number."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from smlightning.data import labels, store
from smlightning.data.labels import Labels
from smlightning.data.store import SPLITS
from smlightning.data.tables import Piece
from smlightning.errors import UserError


def stored(**splits: list[Any]) -> list[str]:
    """Store the labels of each split at ``folder``, two rows in a piece; their names."""
    codes = Labels()
    for split, values in splits.items():
        columns = [pa.array(values[at : at + 2]) for at in range(0, len(values), 2)]
        pieces = [
            ({}, Piece([column, column], split, 2 * at + 1)) for at, column in enumerate(columns)
        ]
        store.write(Path("folder", split), codes.encode(iter(pieces), split))
    return codes.split(Path("folder"), 0)


def labels_of(split: str) -> list[int]:
    return store.Rows(Path("folder"), split).column("labels").tolist()


def test_labels_are_numbered_in_order_of_name() -> None:
    assert stored(train=["b", " c", "a"], val=["c"], test=["a", "b "]) == ["a", "b", "c"]
    assert [labels_of(split) for split in SPLITS] == [[1, 2, 0], [2], [0, 1]]


def test_a_test_split_without_labels_is_left_out() -> None:
    stored(train=["a", "b"] * 15, test=[None, None, None])
    assert sum(len(labels_of(split)) for split in SPLITS) == 30


@pytest.mark.parametrize(
    ("splits", "match"),
    [
        ({"train": ["a", "b", "b", None]}, "train, row 4"),
        ({"train": [1.0, 0.0, math.nan]}, "train, row 3"),
        ({"train": [[1], [2]]}, "train, row 1.*list"),
        ({"train": [b"a", b"b"]}, "train, row 1.*binary"),
        ({"train": ["a", "b"], "test": ["a", "c"]}, "test, row 2.*'c'"),
        ({"train": ["a", "b"], "test": ["a", "b", None, None]}, "test, row 3.*missing"),
        ({"train": ["a", "b"], "test": [None, None, "a", "b"]}, "test, row 1.*missing"),
        ({"train": ["a"] * 30}, "single label, 'a'"),
        ({"train": [f"{number}" for number in range(60)]}, "60 rows have 60 labels"),
    ],
)
def test_labels_that_cannot_be_used_end_in_an_error(splits: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        stored(**splits)


def split(codes: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    chunks = list(labels.split_rows(codes, list(SPLITS), seed))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in SPLITS}


@pytest.mark.parametrize("seed", range(50))
def test_one_row_in_ten_of_every_label_is_held_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(1 + seed % 6, size=rng.integers(1, 300))
    codes = np.unique(numbers, return_inverse=True)[1]
    parts = split(codes, seed)
    again = split(codes, seed)
    assert all((parts[name] == again[name]).all() for name in parts), "a function of the seed"
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(codes)))
    for label, count in enumerate(np.bincount(codes)):
        assert label in codes[parts["train"]], "training knows every label"
        for name in ("val", "test"):
            held_out = (codes[parts[name]] == label).sum()
            assert abs(held_out - (count - 1) / labels.HOLD_OUT) < 1


@pytest.mark.parametrize("chunk", [1 << 18, 1000])
def test_large_data_holds_out_a_bounded_number_of_rows(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "LARGEST", 100)
    monkeypatch.setattr(store, "CHUNK", chunk)
    codes = np.arange(10_000) % 3
    one, other = split(codes, 0), split(codes, 1)
    for name in ("val", "test"):
        assert len(one[name]) == 100
        assert min(np.bincount(codes[one[name]])) > 25
    assert not set(one["val"]) & set(one["test"])
    assert len(set(one["val"]) & set(other["val"])) < 20, "another seed chooses other rows"
    assert len(set(one["val"] % 100)) > 50, "not one row in so many"
