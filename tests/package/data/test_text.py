"""Texts are checked, encoded piece by piece, and padded."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from smlightning.data import text
from smlightning.data.tables import Piece
from smlightning.errors import UserError


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_strings_of_every_type_become_strings(kind: pa.DataType) -> None:
    values = text.filled_strings(Piece([pa.array(["a", "Île"], kind)], "a.csv"), 0, "body")
    assert values.type == pa.string() and values.to_pylist() == ["a", "Île"]


@pytest.mark.parametrize(
    ("values", "row"),
    [(["a", None, ""], 12), (["a", "b", ""], 13), ([0, 1], 11), ([[1]], 11), ([None], 11)],
)
def test_an_error_has_the_first_row_without_text(values: list[Any], row: int) -> None:
    with pytest.raises(UserError, match=f"a.csv, row {row}: the body"):
        text.filled_strings(Piece([pa.array(values)], "a.csv", 11), 0, "body")


class Letters:
    """Positions in the alphabet."""

    pad_id = 99

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        cut = [str(string)[:max_length] for string in texts]
        ids = [ord(letter) - ord("a") for string in cut for letter in string]
        return np.array(ids), np.array([len(string) for string in cut])


def test_texts_are_encoded_piece_by_piece() -> None:
    pieces = [Piece([pa.array(["abc", "d"])], "a"), Piece([pa.array(["ef"])], "a", 3)]
    encoded = list(text.encode(iter(pieces), Letters(), 2))
    stored = {
        name: np.concatenate([arrays[name] for arrays, _ in encoded]) for name in encoded[0][0]
    }
    assert stored["ids"].tolist() == [0, 1, 3, 4, 5]
    assert (stored["starts"].tolist(), stored["lengths"].tolist()) == ([0, 2, 3], [2, 1, 2])
    assert [piece for _, piece in encoded] == pieces


def test_a_batch_of_texts_is_padded_to_the_longest() -> None:
    made = text.batch(["ab", "cdefg"], Letters(), 3)
    assert made["input_ids"].tolist() == [[0, 1, 99], [2, 3, 4]]
    assert made["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
