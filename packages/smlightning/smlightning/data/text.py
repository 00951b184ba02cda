"""Text: check and encode a column, tokenizers, and a batch without a loader."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from smlightning.data.batches import pad
from smlightning.data.tables import Piece, Pieces
from smlightning.errors import UserError


class Tokenizer(Protocol):
    """Encodes texts as tokens.

    Attributes:
        pad_id: the token that pads shorter texts.
    """

    pad_id: int

    def encode(self, texts: pa.Array | list[str], max_length: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts in one array, and the number for each text, at least one."""
        ...


class ByteTokenizer:
    """UTF-8 bytes plus one: 0 is the padding, and UTF-8 never has 246 to 256."""

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
    pieces: Pieces, tokens: Tokenizer, max_length: int
) -> Iterator[tuple[dict[str, np.ndarray], Piece]]:
    """Yield the texts of each piece, its first column, as arrays for the store, and the piece.

    ``ids`` are the tokens of all texts; ``starts`` and ``lengths`` have a number for each text.

    Raises:
        UserError: a text is missing or empty, or has another type.
    """
    total = 0
    for piece in pieces:
        ids, lengths = tokens.encode(filled_strings(piece, 0, "text"), max_length)
        starts = total + np.cumsum(lengths, dtype=np.int64) - lengths
        yield {"ids": ids, "starts": starts, "lengths": lengths.astype(np.uint32)}, piece
        total += len(ids)


def filled_strings(piece: Piece, column: int, name: str) -> pa.Array:
    """A column as strings that are not empty; ``name`` is its name in errors.

    Raises:
        UserError: a row has no text; the error has the number of the first one.
    """
    texts = strings(piece, column, name)
    wrong = pc.index(pc.fill_null(pc.binary_length(texts), 0), 0).as_py()
    if wrong >= 0:
        raise UserError(
            f"{piece.place(wrong)}: the {name} is empty; expected text", "correct or remove the row"
        )
    return texts


def strings(piece: Piece, column: int, name: str) -> pa.Array:
    """A column as strings; UserError if it has another type."""
    values = piece.columns[column]
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(is_kind(values.type) for is_kind in (*kinds, pa.types.is_null)):
        raise UserError(
            f"{piece.place(0)}: the {name} is {str(values.type)[:40]}; expected text",
            f"choose the right column with --{name}_column, or write it as text",
        )
    return values.cast(pa.string())


def batch(texts: list[str], tokens: Tokenizer, max_length: int) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask`` of B texts, both (B, longest) int64."""
    ids, lengths = tokens.encode(texts, max_length)
    input_ids, mask = pad(ids, lengths.cumsum() - lengths, lengths, tokens.pad_id)
    return {"input_ids": input_ids, "attention_mask": mask}
