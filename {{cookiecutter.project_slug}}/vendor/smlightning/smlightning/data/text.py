"""Text: a column of it checked and encoded; what a tokenizer is; a batch without a loader."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from smlightning.data.batches import pad
from smlightning.errors import UserError


class Tokenizer(Protocol):
    """What makes tokens of texts.

    Attributes:
        pad_id: the token that fills up a batch.
    """

    pad_id: int

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts, one after the other, and how many each has, at least one."""
        ...


class ByteTokenizer:
    """UTF-8 bytes plus one: 0 is left for padding, and 246 to 256 stand for no byte of UTF-8."""

    pad_id = 0

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode`."""
        if isinstance(texts, list):
            texts = pa.array([string.encode("utf-8", "replace") or b" " for string in texts])
        cut = pc.binary_slice(texts.cast(pa.binary()), 0, max_length)
        _, ends, content = cut.buffers()
        offsets = np.frombuffer(ends, np.int32)[cut.offset : cut.offset + len(cut) + 1]
        ids = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] + np.uint8(1)
        return ids, np.diff(offsets)


def encode(
    pieces: Iterable[list[pa.Array]], column: str, split: str, tokens: Tokenizer, max_length: int
) -> Iterator[tuple[dict[str, np.ndarray], list[pa.Array]]]:
    """Each piece's first column, texts, as arrays to be stored; and its other columns.

    ``ids`` are the tokens of all texts; ``starts`` and ``lengths`` say which are a text's.

    Args:
        column, split: what errors call the texts and the rows.

    Raises:
        UserError: a text is missing, empty or no text.
    """
    rows = total = 0
    for texts, *others in pieces:
        texts = check_texts(texts, column, split, rows)
        ids, lengths = tokens.encode(texts, max_length)
        starts = total + np.cumsum(lengths, dtype=np.int64) - lengths
        yield {"ids": ids, "starts": starts, "lengths": lengths.astype(np.uint32)}, others
        rows += len(lengths)
        total += len(ids)


def check_texts(values: pa.Array, column: str, split: str, row: int | np.ndarray) -> pa.Array:
    """``values`` as strings.

    Args:
        column: what errors call the column.
        split: what errors call the rows.
        row: how many rows of the split came before; or each one's number, from 0.

    Raises:
        UserError: a value is missing, empty or no text; it names the first such row.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):  # of datasets, for json on the hub
        problem = f"The {column}s of the {split} split are of several types; expected text"
        raise UserError(problem, "write all of them as text")
    is_text = (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
    wrong = 0
    if is_text:
        values = values.cast(pa.string())
        lengths = pc.fill_null(pc.binary_length(values), 0)
        wrong = pc.index(lengths, 0).as_py()
    if wrong < 0:
        return values
    value = values[wrong].as_py()
    text = f"a {type(value).__name__}"
    if value is None:
        text = "null"
    elif value == "":
        text = "empty"
    number = row + wrong if isinstance(row, int) else row[wrong]
    raise UserError(
        f"Row {number + 1} of the {split} split: the {column} is {text}; expected text",
        "correct or remove it",
    )


def batch(texts: list[str], tokens: Tokenizer, max_length: int) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask`` of B texts, both (B, longest) int64."""
    ids, lengths = tokens.encode(texts, max_length)
    input_ids, mask = pad(ids, lengths.cumsum() - lengths, lengths, tokens.pad_id)
    return {"input_ids": input_ids, "attention_mask": mask}
