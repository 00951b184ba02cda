"""Documents: encoded as tokens, divided into splits, packed into windows.

    facts = write(folder, tables.read(source, columns), tokens, length, seed)

A split is one long row of tokens, ``ids``, with a bit field for each, ``uses``. A window is a part
of it. With prompts, a document is a prompt and its answer, a window contains whole documents, and
only the tokens of answers are labels.
"""

import abc
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from smlightning.data import store, text
from smlightning.data.store import SPLITS
from smlightning.data.tables import Pieces
from smlightning.errors import UserError, root_cause
from smlightning.pretrained import PretrainedTokenizer

HOLD_OUT = 10  # one document in ten validates, another one tests, if the data has no such split
FIRST, LABEL = 1, 2  # bits of ``uses``: a document's first token; a label
MOST_GATHERED = 1 << 20  # tokens counted at a time


class Document(NamedTuple):
    """The tokens of a document.

    Attributes:
        ids: its tokens, with those of its start and end.
        unlabelled: the number of tokens at its beginning that are not labels.
    """

    ids: np.ndarray
    unlabelled: int


class Tokens(abc.ABC):
    """Encodes documents as tokens, and decodes tokens.

    Attributes:
        start: the token before each document.
        end: the tokens after it; if empty, the next document's start ends it.
        prompted: whether documents are prompts with answers.
        dtype: the smallest type for all tokens.
    """

    start: int
    end: list[int]
    prompted: bool
    dtype: np.dtype

    @abc.abstractmethod
    def encode(self, texts: list[str]) -> list[Any]:
        """The tokens of each text."""

    @abc.abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of tokens."""

    def check_length(self, length: int) -> None:  # noqa: B027  most have no limit
        """Raise a UserError if a window of ``length`` tokens is too long for the network."""

    def opening(self) -> list[int]:
        """The tokens before a document's text or prompt."""
        return [self.start]

    def question(self, prompt: str) -> str:
        """The text of a prompt, up to its answer."""
        return f"{prompt}\n"

    def answer(self, prompt: str, answer: str) -> str:
        """The text of an answer, after ``question(prompt)``."""
        return answer

    def documents(self, texts: list[str]) -> Iterator[Document]:
        """Each text with its start and end."""
        for ids in self.encode(texts):
            yield Document(self._joined(self.opening(), ids, self.end), 1 if self.end else 0)

    def answers(self, prompts: list[str], answers: list[str]) -> Iterator[Document]:
        """Each prompt with its answer, which always has an end."""
        questions = self.encode([self.question(prompt) for prompt in prompts])
        replies = self.encode(list(map(self.answer, prompts, answers)))
        ends = self.end or [self.start]
        for before, after in zip(questions, replies, strict=True):
            end = [] if np.isin(after, ends).any() else ends  # a chat template adds one
            before = [*self.opening(), *before]
            yield Document(self._joined(before, after, end), max(len(before), 1))

    def _joined(self, *parts: Any) -> np.ndarray:
        return np.concatenate([np.asarray(part, self.dtype) for part in parts])

    def beginning(self, text: str) -> list[int]:
        """The tokens from which a network continues, or answers, a text."""
        given = self.question(text) if self.prompted else text
        (ids,) = self.encode([given])
        return [*self.opening(), *map(int, ids)]


class ByteTokens(Tokens):
    """UTF-8 bytes plus one; 0 starts a document."""

    start = 0
    dtype = np.dtype(np.uint8)

    def __init__(self, prompted: bool = False) -> None:
        self.end = []
        self.prompted = prompted

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8", "replace"), np.uint8) + 1 for text in texts]

    def decode(self, ids: list[int]) -> str:
        return bytes(number - 1 for number in ids if number > 0).decode("utf-8", "replace")


class PretrainedTokens(PretrainedTokenizer, Tokens):
    """Tokens of a checkpoint's tokenizer.

    Without a token for the start, the token for the end is used for both, as in GPT-2.

    If the checkpoint has a chat template, it formats prompts and answers, and adds the start.
    transformers renders it in Jinja's sandbox: it can read no file and call no function, but it
    may take long.
    """

    def __init__(self, name: str, prompted: bool = False) -> None:
        super().__init__(name)
        self.name, self.prompted = name, prompted
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if first is None and last is None:
            raise UserError(
                f"--model_name {name!r}: its tokenizer has no token that starts or ends a text",
                "set eos_token in its tokenizer_config.json",
            )
        self.start = last if first is None else first
        self.end = [] if last in (None, self.start) else [last]
        self.dtype = np.min_scalar_type(len(self.tokenizer))
        self.has_template = prompted and bool(self.tokenizer.chat_template)

    def encode(self, texts: Any, max_length: int = 0) -> Any:
        """The tokens of each text, without a limit."""
        return self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def check_length(self, length: int) -> None:
        if self.positions and length > self.positions:
            raise UserError(
                f"--max_length {length} is more than the {self.positions} positions of "
                f"--model_name {self.name!r}",
                f"give at most {self.positions}",
            )

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def opening(self) -> list[int]:
        return [] if self.has_template else super().opening()

    def question(self, prompt: str) -> str:
        if not self.has_template:
            return super().question(prompt)
        return self._rendered({"role": "user", "content": prompt})

    def answer(self, prompt: str, answer: str) -> str:
        if not self.has_template:
            return answer
        user = {"role": "user", "content": prompt}
        whole = self._rendered(user, {"role": "assistant", "content": answer})
        question = self.question(prompt)
        if not whole.startswith(question):
            raise UserError(
                f"The chat template of --model_name {self.name!r} formats a prompt differently "
                "with an answer, so the answer's tokens are unknown",
                "train without --prompt_column, on texts that hold both",
            )
        return whole.removeprefix(question)

    def _rendered(self, *messages: dict[str, str]) -> str:
        """A conversation as text, with the beginning of an answer if it has none."""
        try:
            rendered = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=len(messages) == 1
            )
        except Exception as error:  # Jinja's, or one that the template raises
            raise UserError(
                f"The chat template of --model_name {self.name!r} does not render a prompt and "
                f"its answer ({root_cause(error)})",
                "train without --prompt_column, on texts that hold both",
            ) from error
        return str(rendered)


# Storing --------------------------------------------------------------------------------------


def write(
    folder: Path, splits: Mapping[str, Pieces], tokens: Tokens, length: int, seed: int
) -> dict[str, dict[str, float]]:
    """Encode the documents of each split, and store its windows of ``length`` tokens.

    Missing splits get documents from the training split.

    Returns:
        By split: ``tokens_per_byte``, labels for each byte of text, and ``labelled``, the share of
        the windows' tokens that are labels.

    Raises:
        UserError: there is too little text.
    """
    tokens.check_length(length)
    scratch = folder / "scratch"
    for split, pieces in splits.items():
        store.write(scratch / split, encode(pieces, tokens))
    facts: dict[str, dict[str, float]] = {"tokens_per_byte": {}, "labelled": {}}
    for split, (given, numbers) in divide(scratch, seed).items():
        encoded = store.arrays(scratch / given)
        filler = length if tokens.prompted else 0
        store.write(folder / split, packed(encoded, numbers, filler))
        write_windows(folder, split, length, whole=tokens.prompted)
        labels = encoded["lengths"][numbers] - encoded["unlabelled"][numbers]
        facts["tokens_per_byte"][split] = float(labels.sum() / encoded["bytes"][numbers].sum())
        facts["labelled"][split] = labelled(folder, split, length)
    shutil.rmtree(scratch)
    return facts


def encode(pieces: Pieces, tokens: Tokens) -> Iterator[dict[str, np.ndarray]]:
    """Documents as arrays for the store; those without text are left out.

    ``ids`` are the tokens of all documents. ``starts``, ``lengths``, ``unlabelled`` (`Document`)
    and ``bytes``, the length of the text, have a number for each document.

    Args:
        pieces: a column of texts; if tokens are ``prompted``, also a column of prompts.
    """
    total = 0
    for piece in pieces:
        texts = text.strings(piece, 0, "text")
        sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy()
        has_text = sizes > 0
        if not has_text.any():
            continue
        kept = texts.filter(has_text).to_pylist()
        if tokens.prompted:
            prompts = text.filled_strings(piece, 1, "prompt").filter(has_text)
            documents = [*tokens.answers(prompts.to_pylist(), kept)]
        else:
            documents = [*tokens.documents(kept)]
        lengths = np.array([len(document.ids) for document in documents])
        yield {
            "ids": np.concatenate([document.ids for document in documents]),
            "starts": total + np.cumsum(lengths) - lengths,
            "lengths": lengths,
            "unlabelled": np.array([document.unlabelled for document in documents]),
            "bytes": sizes[has_text].astype(np.int64),
        }
        total += lengths.sum()


def divide(scratch: Path, seed: int) -> dict[str, tuple[str, np.ndarray]]:
    """For each split, the folder of its documents, and their numbers there in random order.

    A missing split gets one of HOLD_OUT training documents, and at least one.
    """
    chosen = {}
    for split in [split for split in SPLITS if (scratch / split).exists()]:
        count = len(store.arrays(scratch / split).get("lengths", ()))
        if not count:
            raise UserError(f"The {split} split has no text", "add texts, or remove its file")
        chosen[split] = (split, np.random.default_rng(seed).permutation(count))
    missing = [split for split in SPLITS if split not in chosen]
    _, order = chosen["train"]
    held_out = max(1, len(order) // HOLD_OUT)
    if len(order) <= held_out * len(missing):
        raise UserError(
            f"The data has {len(order)} documents; expected at least {len(missing) + 1}, one for "
            "each split",
            "add documents, or lines to a single text file",
        )
    for split in missing:
        chosen[split] = ("train", order[:held_out])
        order = order[held_out:]
    chosen["train"] = ("train", order)
    return {split: chosen[split] for split in SPLITS}


def packed(
    documents: dict[str, np.ndarray], numbers: np.ndarray, filler: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """``ids`` and ``uses`` of these documents.

    Args:
        filler: the number of tokens to add after the last document; none is a label.
    """
    for number in numbers:
        first, length = documents["starts"][number], documents["lengths"][number]
        uses = np.full(length, LABEL, np.uint8)
        uses[: documents["unlabelled"][number]] = 0
        uses[0] |= FIRST
        yield {"ids": documents["ids"][first : first + length], "uses": uses}
    if filler:
        ids = np.zeros(filler, documents["ids"].dtype)
        yield {"ids": ids, "uses": np.full(filler, FIRST, np.uint8)}


def write_windows(folder: Path, split: str, length: int, whole: bool = False) -> None:
    """Write the start of each window, and the number of its tokens that may be labels.

    Windows overlap by one token. Tokens after the last whole window are left out.

    Args:
        whole: each window begins with a document and has labels in whole documents only. A document
            longer than a window is cut. The tokens must end with a ``filler`` of a window's length.
    """
    uses = store.arrays(folder / split)["uses"]
    if whole:
        firsts = np.flatnonzero(uses & FIRST)
        # The first token of the filler ends the last document.
        starts, lengths = whole_documents(firsts[firsts <= len(uses) - length], length)
    else:
        starts = np.arange((len(uses) - 1) // length, dtype=np.int64) * length
        lengths = np.full(len(starts), length + 1, np.int64)
    if not len(starts):
        problem = f"The {split} split has {len(uses)} tokens, too few for a window of {length}"
        raise UserError(problem, "give more text, or a smaller --max_length")
    store.write(folder / split, [{"windows": starts, "lengths": lengths}])
    store.write(folder / store.INDEX, [{split: np.arange(len(starts), dtype=np.int64)}])


def whole_documents(firsts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts of windows with as many whole documents as fit, and the lengths of these documents.

    Args:
        firsts: the start of each document, and the end of the last one.
        length: tokens of a window, without its last label.
    """
    stops = firsts[1:]
    starts, lengths, number = [], [], 0
    while number < len(stops):
        start = firsts[number]
        following = int(np.searchsorted(stops, start + length + 1, side="right"))
        is_long = following == number
        starts.append(start)
        lengths.append(length + 1 if is_long else stops[following - 1] - start)
        number = following + is_long
    return np.array(starts, np.int64), np.array(lengths, np.int64)


def labelled(folder: Path, split: str, length: int) -> float:
    """The share of the windows' tokens that are labels; a UserError if it is 0."""
    arrays = store.arrays(folder / split)
    count, step = len(arrays["windows"]), max(MOST_GATHERED // length, 1)
    labels = 0
    for at in range(0, count, step):
        windows = np.arange(at, min(at + step, count))
        labels += int(gather(arrays, windows, length)[2].sum())
    if not labels:
        problem = f"Each prompt of the {split} split fills its window of {length} tokens"
        raise UserError(f"{problem}: no answer is left to learn", "raise --max_length")
    return labels / (count * length)


# Reading --------------------------------------------------------------------------------------


def gather(
    arrays: dict[str, np.ndarray], windows: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of these windows, (N, length + 1); masks of documents' first tokens,
    (N, length + 1), and of labels, (N, length), which begin at the second token.
    """
    place = np.arange(length + 1)
    at = arrays["windows"][windows][:, None] + place
    uses = arrays["uses"][at]
    labels = (uses & LABEL > 0) & (place < arrays["lengths"][windows][:, None])
    return arrays["ids"][at].astype(np.int64), uses & FIRST > 0, labels[:, 1:]


def positions(first: np.ndarray) -> np.ndarray:
    """(B, L): each token's position in its document, or in the window if that began before.

    Args:
        first: (B, L), the mask of documents' first tokens.
    """
    place = np.arange(first.shape[1])
    return place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
