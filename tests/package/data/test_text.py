"""A column of text is text, or the first row that is not is named."""

import numpy as np
import pyarrow as pa
import pytest

from smlightning.data import text
from smlightning.errors import UserError


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_strings_of_every_type(kind: pa.DataType) -> None:
    values = text.check_texts(pa.array(["a", "Île"], kind), "body", "train", 0)
    assert values.type == pa.string() and values.to_pylist() == ["a", "Île"]


@pytest.mark.parametrize(
    ("values", "row", "found"),
    [
        (["a", None, ""], 12, "null"),
        (["a", "b", ""], 13, "empty"),
        ([0, 1], 11, "a int"),
        ([[1]], 11, "a list"),
    ],
)
def test_the_first_row_without_text_is_named(values: list, row: int, found: str) -> None:
    with pytest.raises(UserError) as refusal:
        text.check_texts(pa.array(values), "body", "val", 10)
    for part in (f"Row {row} ", "val", "body", found):
        assert part in refusal.value.problem


class Letters:
    """Positions in the alphabet."""

    pad_id = 99

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        cut = [str(string)[:max_length] for string in texts]
        ids = [ord(letter) - ord("a") for string in cut for letter in string]
        return np.array(ids), np.array([len(string) for string in cut])


def test_texts_are_encoded_piece_by_piece() -> None:
    pieces = [[pa.array(["abc", "d"]), pa.array([1, 2])], [pa.array(["ef"]), pa.array([3])]]
    encoded = list(text.encode(pieces, "body", "train", Letters(), 2))
    ids = np.concatenate([arrays["ids"] for arrays, _ in encoded])
    starts = np.concatenate([arrays["starts"] for arrays, _ in encoded])
    lengths = np.concatenate([arrays["lengths"] for arrays, _ in encoded])
    assert ids.tolist() == [0, 1, 3, 4, 5]
    assert (starts.tolist(), lengths.tolist()) == ([0, 2, 3], [2, 1, 2])
    assert [others[0].to_pylist() for _, others in encoded] == [[1, 2], [3]]
    with pytest.raises(UserError) as refusal:
        list(text.encode([*pieces, [pa.array([""])]], "body", "train", Letters(), 2))
    assert "Row 4 " in refusal.value.problem


def test_a_batch_of_texts_is_padded_to_the_longest() -> None:
    made = text.batch(["ab", "cdefg"], Letters(), 3)
    assert made["input_ids"].tolist() == [[0, 1, 99], [2, 3, 4]]
    assert made["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
