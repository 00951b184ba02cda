"""Labels become classes in order of name, and rows are held out by label and number."""

from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from smlightning.data import splits
from smlightning.data.sources import SPLITS, TEXT, Table
from smlightning.errors import UserError

Labels = list[str | None]


def tables_of(**labels: Labels | tuple[Labels, ...]) -> list[Table]:
    """A table for each list of labels of each split."""
    tables = []
    for split, given in labels.items():
        for values in given if isinstance(given, tuple) else (given,):
            features = datasets.Features(label=TEXT)
            rows = datasets.Dataset.from_dict({"label": values}, features=features)
            tables.append(Table(split, split, rows))
    return tables


def labels_of(tables: list[Table], seed: int = 0) -> dict[str, list[str]]:
    """The labels of the rows of each split."""
    tables = splits.labelled(tables)
    names = splits.class_names(tables)
    found = {}
    for split, part in splits.complete(tables, seed).items():
        codes = splits.codes(pa.array(part.rows["label"]), names).to_numpy()
        found[split] = [names[code] for code in codes[part.has(slice(None))]]
    return found


def test_given_splits_are_kept_and_blanks_around_a_label_do_not_count() -> None:
    tables = tables_of(train=(["b", " c", "a"], ["c "]), validation=["c"], test=["a", "b "])
    assert splits.class_names(splits.labelled(tables)) == ["a", "b", "c"]
    assert labels_of(tables) == {
        "train": ["b", "c", "a", "c"], "validation": ["c"], "test": ["a", "b"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tests", "instead"),
    [
        (([None, "", " "],), "a part of the training rows is"),
        (([None, None], ["a"]), "the other files are"),
    ],
)
def test_a_test_file_without_labels_is_left_out_with_a_line(
    tests: tuple[Labels, ...], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = labels_of(tables_of(train=["a", "b"] * 15, test=tests))
    assert sum(map(len, found.values())) == 30 + (len(tests) - 1)
    line = f"warning: test has no label in any row and is left out; {instead} the test split"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ({"train": ["a", "b", "b", None]}, "train, row 4: the label is empty"),
        ({"train": ["a", "b", " "]}, "train, row 3: the label is empty"),
        ({"train": ["a", "b"], "test": ["a", "c"]}, "test, row 2.*'c'"),
        ({"train": ["a", "b"], "test": ["a", "b", None, None]}, "test, row 3.*empty"),
        ({"train": ["a", "b"], "test": [None, None, "a", "b"]}, "test, row 1.*empty"),
        ({"train": ["a"] * 30}, "single label, 'a'"),
        ({"train": ["a", "b"], "test": ["b\u200b"]}, r"'b' and 'b\\u200b' look like one"),
        ({"train": ["True", "a"], "test": ["true"]}, "'True' and 'true' look like one"),
        ({"train": ["1", "2"], "test": ["1.0"]}, "'1' and '1.0' look like one"),
        ({"train": [f"{number}" for number in range(60)]}, "60 rows have 60 labels"),
    ],
)
def test_labels_that_cannot_be_used_end_in_an_error(labels: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        labels_of(tables_of(**labels))


def held_out(codes: np.ndarray, seed: int, chunk: int = splits.CHUNK) -> dict[str, np.ndarray]:
    """The row numbers of each split."""
    chunks = [codes[at : at + chunk] for at in range(0, len(codes), chunk)]
    numbers = np.concatenate([*splits.held_out(chunks, len(codes), 2, seed)])
    return {split: np.flatnonzero(numbers == number) for number, split in enumerate(SPLITS)}


@pytest.mark.parametrize("seed", range(50))
def test_one_row_in_ten_of_every_label_is_held_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(1 + seed % 6, size=rng.integers(1, 300))
    codes = np.unique(numbers, return_inverse=True)[1]
    parts = held_out(codes, seed)
    again = held_out(codes, seed)
    assert all((parts[name] == again[name]).all() for name in parts), "a function of the seed"
    for label, count in enumerate(np.bincount(codes)):
        assert label in codes[parts["train"]], "training knows every label"
        for name in ("validation", "test"):
            number = (codes[parts[name]] == label).sum()
            assert abs(number - (count - 1) / splits.HOLD_OUT) < 1


@pytest.mark.parametrize("chunk", [splits.CHUNK, 1000])
def test_large_data_holds_out_a_bounded_number_of_rows(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "LARGEST", 100)
    codes = np.arange(10_000) % 3
    one, other = held_out(codes, 0, chunk), held_out(codes, 1, chunk)
    for name in ("validation", "test"):
        assert len(one[name]) == 100
        assert min(np.bincount(codes[one[name]])) > 25
    common = set(one["validation"]) & set(other["validation"])
    assert len(common) < 20, "another seed chooses other rows"
    assert len(set(one["validation"] % 100)) > 50, "not one row in so many"


def test_rows_of_several_stretches_are_divided_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "CHUNK", 7)
    labels = [f"label {number % 3}" for number in range(100)]
    tables = splits.labelled(tables_of(train=labels))
    parts = splits.complete(tables, 0)
    expected = held_out(np.arange(100) % 3, 0, 7)
    for name, part in parts.items():
        assert np.flatnonzero(part.has(slice(None))).tolist() == expected[name].tolist()
        assert part.size() == len(expected[name]) > 0
