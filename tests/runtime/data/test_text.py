"""Bytes as tokens, of Arrow's arrays and of lists of texts."""

import numpy as np
import pyarrow as pa

from smlightning.data import text


def test_tokens_are_the_bytes_of_each_text_cut_at_a_length() -> None:
    texts = ["a", "Île de", "b" * 9]
    expected = [number + 1 for string in texts for number in string.encode()[:5]]
    for given in (texts, pa.array(texts), pa.array(["x", *texts])[1:]):
        ids, lengths = text.ByteTokenizer().encode(given, 5)
        assert ids.dtype == np.uint8 and ids.tolist() == expected
        assert lengths.tolist() == [1, 5, 5]


def test_a_batch_is_padded_with_zeros() -> None:
    made = text.batch(["ab", ""], text.ByteTokenizer(), 9)
    assert made["input_ids"].tolist() == [[98, 99], [33, 0]]
    assert made["attention_mask"].tolist() == [[1, 1], [1, 0]]
