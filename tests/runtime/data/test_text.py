"""Texts are checked, encoded piece by piece, and padded."""

from typing import Any

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
    with pytest.raises(UserError, match=f"a.csv, row {row} .*the body"):
        text.filled_strings(Piece([pa.array(values)], "a.csv", 11), 0, "body")
