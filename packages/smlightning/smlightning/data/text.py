"""Text as tokens: bytes, and a batch without a loader."""

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from smlightning.data.batches import pad


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


def batch(texts: list[str], tokens: Tokenizer, max_length: int) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask`` of B texts, both (B, longest) int64."""
    ids, lengths = tokens.encode(texts, max_length)
    input_ids, mask = pad(ids, lengths.cumsum() - lengths, lengths, tokens.pad_id)
    return {"input_ids": input_ids, "attention_mask": mask}
