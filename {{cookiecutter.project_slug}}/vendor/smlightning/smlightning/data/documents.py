"""Documents: made of tokens, divided into splits, and packed into windows.

    facts = write(folder, tables.read(source, columns), tokens, length, seed)

A split is one long row of tokens, ``ids``, and the use of each, ``uses``. A window is a part of it.
With prompts a document is a prompt and its answer, a window holds whole documents, and only the
tokens of answers are labels.
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
FIRST, LABEL = 1, 2  # the uses of a token, as bits
MOST_GATHERED = 1 << 20  # tokens that are counted at a time


class Document(NamedTuple):
    """The tokens of a document.

    Attributes:
        ids: with those of its start and end.
        unlabelled: how many of its first tokens are no labels.
    """

    ids: np.ndarray
    unlabelled: int


class Tokens(abc.ABC):
    """Makes tokens of documents, and text of tokens.

    Attributes:
        start: the token before each document.
        end: the tokens after it; if there are none, the next start ends it.
        prompted: documents are prompts with answers.
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
        """UserError if the network has fewer positions than such a window has tokens."""

    def opening(self) -> list[int]:
        """The tokens before a document's text, or before a prompt."""
        return [self.start]

    def question(self, prompt: str) -> str:
        """A prompt as it stands before its answer."""
        return f"{prompt}\n"

    def answer(self, prompt: str, answer: str) -> str:
        """An answer as it stands after ``question(prompt)``."""
        return answer

    def documents(self, texts: list[str]) -> Iterator[Document]:
        """Each text between its start and its end."""
        for ids in self.encode(texts):
            yield Document(self._joined(self.opening(), ids, self.end), 1 if self.end else 0)

    def answers(self, prompts: list[str], answers: list[str]) -> Iterator[Document]:
        """Each prompt with its answer, which always has an end of its own."""
        questions = self.encode([self.question(prompt) for prompt in prompts])
        replies = self.encode(list(map(self.answer, prompts, answers)))
        ends = self.end or [self.start]
        for before, after in zip(questions, replies, strict=True):
            end = [] if np.isin(after, ends).any() else ends  # a chat template writes it
            before = [*self.opening(), *before]
            yield Document(self._joined(before, after, end), max(len(before), 1))

    def _joined(self, *parts: Any) -> np.ndarray:
        return np.concatenate([np.asarray(part, self.dtype) for part in parts])

    def beginning(self, text: str) -> list[int]:
        """The input of a network that is to continue, or to answer, a text."""
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
    """A checkpoint's own tokens.

    If a checkpoint has no token for the start, its token for the end does both, as in GPT-2.

    Prompts and answers follow its chat template, if it has one, which writes its own start. A
    template is a checkpoint's own text: transformers renders it in Jinja's sandbox, where it can
    neither read files nor call anything, but may take long.
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
                f"The chat template of --model_name {self.name!r} changes a prompt when an answer "
                "follows, so the answer's tokens are unknown",
                "train without --prompt_column, on texts that hold both",
            )
        return whole.removeprefix(question)

    def _rendered(self, *messages: dict[str, str]) -> str:
        """A conversation, with the beginning of an answer if it has none."""
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

    Missing splits are held out of the documents for training.

    Returns:
        By split: ``tokens_per_byte``, the number of predicted tokens for each byte of text, and
        ``labelled``, the share of the windows' tokens that are labels.

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
    """Documents as arrays for the store, without those that have no text.

    ``ids`` are the tokens of all; ``starts`` and ``lengths`` tell the documents apart;
    ``unlabelled`` is how many of its first tokens are no labels, ``bytes`` how long its text is.

    Args:
        pieces: a column of texts, and if tokens are ``prompted`` another one of prompts.
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
    """For each split, the folder of its documents, and their numbers there, in random order.

    A missing split gets one document in HOLD_OUT of those for training, and at least one.
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
    """The tokens of these documents, ``ids``, and the use of each, ``uses``.

    Args:
        filler: tokens after the last document that belong to no document and are no labels.
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
    """Write where windows start, and how many of their tokens may be labels.

    Windows overlap by a token; the last tokens, too few for a window, are left out.

    Args:
        whole: each window begins with a document, and its labels are those of its whole documents.
            A document that is longer than a window is cut. The tokens have to end with a
            ``filler`` as long as a window.
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
    """Starts of windows that hold as many whole documents as fit, and the tokens of these.

    Args:
        firsts: where each document begins, and where the last one ends.
        length: of a window, which has a label more.
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
    """The share of the windows' tokens that are labels; UserError if there are none."""
    arrays = store.arrays(folder / split)
    count, step = len(arrays["windows"]), max(MOST_GATHERED // length, 1)
    labels = 0
    for at in range(0, count, step):
        windows = np.arange(at, min(at + step, count))
        labels += int(gather(arrays, windows, length)[2].sum())
    if not labels:
        problem = f"No answer of the {split} split begins within a window of {length} tokens"
        raise UserError(problem, "raise --max_length")
    return labels / (count * length)


# Reading --------------------------------------------------------------------------------------


def gather(
    arrays: dict[str, np.ndarray], windows: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of these windows, (N, length + 1); which are the first of a document,
    (N, length + 1); and which of those after the first are labels, (N, length).
    """
    place = np.arange(length + 1)
    at = arrays["windows"][windows][:, None] + place
    uses = arrays["uses"][at]
    labels = (uses & LABEL > 0) & (place < arrays["lengths"][windows][:, None])
    return arrays["ids"][at].astype(np.int64), uses & FIRST > 0, labels[:, 1:]


def positions(first: np.ndarray) -> np.ndarray:
    """(B, L): each token's number in its document, or in the window if that began before.

    Args:
        first: (B, L), which tokens are the first of their document.
    """
    place = np.arange(first.shape[1])
    return place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
