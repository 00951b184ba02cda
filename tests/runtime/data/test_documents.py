"""Documents are divided into splits; those without text are left out.

The tests of a language model's project show that packing does not change a document's loss.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from smlightning.data import documents, store
from smlightning.data.store import SPLITS
from smlightning.data.tables import Piece
from smlightning.errors import UserError

TOKENS = documents.ByteTokens()


def encoded(split: str, *texts: str | None) -> None:
    pieces = iter([Piece([pa.array([text], pa.string())], split) for text in texts])
    store.write(Path("scratch", split), documents.encode(pieces, TOKENS))


def test_documents_without_text_are_left_out() -> None:
    encoded("train", "a", "", "bc", None)
    stored = store.arrays(Path("scratch/train"))
    assert stored["ids"].tolist() == [0, 98, 0, 99, 100]
    assert stored["starts"].tolist() == [0, 2] and stored["bytes"].tolist() == [1, 2]


@pytest.mark.parametrize("given", [("train",), ("train", "val"), SPLITS])
def test_missing_splits_are_held_out_of_training(given: tuple[str, ...]) -> None:
    for split in given:
        encoded(split, *map(str, range(50)))
    chosen = documents.divide(Path("scratch"), 0)
    sizes = {split: len(numbers) for split, (_, numbers) in chosen.items()}
    assert sizes == {split: 50 if split in given else 5 for split in SPLITS} | {
        "train": 50 - 5 * (3 - len(given))
    }
    held_out = [
        number for folder, numbers in chosen.values() if folder == "train" for number in numbers
    ]
    assert sorted(held_out) == list(range(50))


@pytest.mark.parametrize(
    ("splits", "match"),
    [
        ({"train": ["a"] * 9, "val": [None]}, "val split has no text"),
        ({"train": ["a", "b"]}, "2 documents"),
    ],
)
def test_too_few_documents_end_in_an_error(splits: dict[str, list[str]], match: str) -> None:
    for split, texts in splits.items():
        encoded(split, *texts)
    with pytest.raises(UserError, match=match):
        documents.divide(Path("scratch"), 0)
