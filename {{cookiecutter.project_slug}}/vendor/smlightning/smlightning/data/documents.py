"""Documents: read, encoded, divided into splits, and packed into windows without padding.

The way of a document: `read_texts`, or a row of `tables.read`; `encode` makes tokens of it;
`split_documents` says whose split it is; `packed` puts it between its start and its end, in one
long row of tokens, of which `write_windows` stores where windows begin.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlightning.data import store, tables, text
from smlightning.errors import UserError
from smlightning.pretrained import PretrainedTokenizer

TEXT_FILES = (".txt", ".md", ".rst", ".py")  # each is a document
HOLD_OUT = 10  # one document in ten validates, another one tests, where no such split is given
PIECE = 1000  # documents that are encoded at a time


class Tokens(Protocol):
    """What makes tokens of documents, and text of tokens.

    Attributes:
        start: the token before each document.
        end: the tokens after it; without any, the next one's start says that it ended.
    """

    start: int
    end: list[int]

    def encode(
        self, texts: pa.Array | list[str], max_length: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts, one after the other, and how many each has."""
        ...

    def decode(self, ids: list[int]) -> str: ...


class ByteTokens:
    """UTF-8 bytes plus one; 0 starts a document."""

    start = 0

    def __init__(self) -> None:
        self.end: list[int] = []

    def encode(
        self, texts: pa.Array | list[str], max_length: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray]:
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        encoded = [string.encode("utf-8", "replace")[:max_length] for string in strings]
        ids = np.frombuffer(b"".join(encoded), np.uint8) + np.uint8(1)
        return ids, np.array([len(content) for content in encoded])

    def decode(self, ids: list[int]) -> str:
        return bytes(number - 1 for number in ids if number > 0).decode("utf-8", "replace")


class PretrainedTokens(PretrainedTokenizer):
    """A checkpoint's own tokens, of whole documents.

    A checkpoint without a token for the start has one for the end, which does for both: GPT-2.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if first is None and last is None:
            raise UserError(
                f"--model_name {name!r}: its tokenizer has no token that starts or ends a text",
                "set eos_token in its tokenizer_config.json",
            )
        self.start: int = last if first is None else first
        self.end: list[int] = [] if last in (None, self.start) else [last]

    def encode(
        self, texts: pa.Array | list[str], max_length: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray]:
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        rows = self.tokenizer(strings, add_special_tokens=False, verbose=False)["input_ids"]
        dtype = np.min_scalar_type(len(self.tokenizer))
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        return ids, np.array([len(row) for row in rows])

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def text_files(dataset: str) -> list[Path]:
    """The plain text files that ``dataset`` names: one, or all of a folder without tables."""
    root = Path(dataset).expanduser()
    if root.is_file():
        return [root] if root.suffix.lower() in TEXT_FILES else []
    if not root.is_dir():
        return []
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if any(path.suffix.lower() in tables.FORMATS for path in files):
        return []
    return [path for path in files if path.suffix.lower() in TEXT_FILES]


def read_texts(files: list[Path]) -> tables.Pieces:
    """Each file a document."""
    for at in range(0, len(files), PIECE):
        texts = [
            path.read_text(encoding="utf-8", errors="replace") for path in files[at : at + PIECE]
        ]
        yield [pa.array(texts)]


def encode(pieces: tables.Pieces, split: str, tokens: Tokens) -> Iterator[dict[str, np.ndarray]]:
    """Documents as arrays to be stored; empty ones are left out.

    ``ids`` are the tokens of all; ``starts`` and ``lengths`` say which are a document's, ``bytes``
    how long its text is.
    """
    total = 0
    for texts, *_ in pieces:
        if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
            texts = texts.filter(pc.fill_null(pc.not_equal(pc.binary_length(texts), 0), False))
        if not len(texts):
            continue
        texts = text.check_texts(texts, "text", split, 0)
        ids, lengths = tokens.encode(texts)
        starts = total + np.cumsum(lengths, dtype=np.int64) - lengths
        sizes = pc.binary_length(texts).to_numpy().astype(np.int64)
        yield {"ids": ids, "starts": starts, "lengths": lengths.astype(np.int64), "bytes": sizes}
        total += len(ids)


def split_documents(
    scratch: Path, splits: Sequence[str], seed: int
) -> dict[str, tuple[str, np.ndarray]]:
    """Of each split, the folder that has its documents, and their numbers there.

    The first of ``splits`` has to be given. Another one that is not gets one document in
    HOLD_OUT, and at least one, of the first's.
    """
    given = [
        split for split in splits if (scratch / split).exists() and store.arrays(scratch / split)
    ]
    first = splits[0]
    if first not in given:
        problem = f"The {first} split has no text"
        raise UserError(problem, "give at least one document that is not empty")
    chosen = {}
    for split in given:
        count = len(store.arrays(scratch / split)["lengths"])
        chosen[split] = (split, np.random.default_rng(seed).permutation(count))
    missing = [split for split in splits if split not in given]
    _, order = chosen[first]
    held_out = max(1, len(order) // HOLD_OUT)
    if len(order) <= held_out * len(missing):
        problem = f"{len(order)} documents cannot be divided into training, validation and test"
        raise UserError(problem, "give more of them, or files for each")
    for split in missing:
        chosen[split] = (first, order[:held_out])
        order = order[held_out:]
    chosen[first] = (first, order)
    return chosen


def packed(
    documents: dict[str, np.ndarray], numbers: np.ndarray, tokens: Tokens
) -> Iterator[dict[str, np.ndarray]]:
    """The tokens of these documents, each between its start and its end."""
    dtype = documents["ids"].dtype
    start, end = np.array([tokens.start], dtype), np.array(tokens.end, dtype)
    for number in numbers:
        first, length = documents["starts"][number], documents["lengths"][number]
        yield {"ids": np.concatenate([start, documents["ids"][first : first + length], end])}


def write_windows(folder: Path, split: str, length: int) -> None:
    """Write where windows start that overlap by a token; the last tokens, too few, are left out."""
    tokens = len(store.arrays(folder / split)["ids"])
    windows = (tokens - 1) // length
    if windows < 1:
        problem = f"The {split} split has {tokens} tokens, too few for a window of {length}"
        raise UserError(problem, "give more text, or a smaller --max_length")
    store.write(folder / split, [{"starts": np.arange(windows, dtype=np.int64) * length}])
    store.write(folder / store.INDEX, [{split: np.arange(windows, dtype=np.int64)}])


def labels_per_byte(documents: dict[str, np.ndarray], numbers: np.ndarray) -> float:
    """How many tokens are predicted for each byte of text; one ends each document."""
    labels = documents["lengths"][numbers].sum() + len(numbers)
    return float(labels / documents["bytes"][numbers].sum())


def positions(ids: np.ndarray, start: int) -> np.ndarray:
    """(B, L): each token's number in its document, or in the window where that began before."""
    place = np.arange(ids.shape[1])
    return place - np.maximum.accumulate(np.where(ids == start, place, 0), axis=1)
