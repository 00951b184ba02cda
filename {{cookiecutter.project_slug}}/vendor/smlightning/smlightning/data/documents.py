"""Documents: read, encoded, divided into splits, and packed into windows.

The way of a document: `read_texts`, or a row of `tables.read`; `encode` makes tokens of it;
`split_documents` says whose split it is; `packed` puts it into one long row of tokens, with what
each token is for, of which `write_windows` stores where windows begin; `gather` reads them.

Where rows have a prompt and an answer, a document is both, and the answer's tokens alone are
labels.
"""

import abc
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlightning.data import store, tables, text
from smlightning.errors import UserError, root_cause
from smlightning.pretrained import PretrainedTokenizer

ABOUT_DATA = ("readme", "license", "licence", "notice", "citation")  # beside tables: not data
TEXT_FILES = (".txt", ".md", ".rst", ".py")  # each is a document
HOLD_OUT = 10  # one document in ten validates, another one tests, where no such split is given
DIVIDED = 2 * HOLD_OUT  # documents that a single text file is made into
PIECE = 1000  # documents that are encoded at a time
FIRST, LABEL = 1, 2  # what a token is for: bits
MOST_GATHERED = 1 << 20  # tokens that are counted at a time


class Encoded(NamedTuple):
    """The tokens of documents, one after the other.

    Attributes:
        ids: of all.
        lengths: how many each document has.
        unlabelled: how many of its first are no labels.
    """

    ids: np.ndarray
    lengths: np.ndarray
    unlabelled: np.ndarray


class Tokens(abc.ABC):
    """What makes tokens of documents, and text of tokens.

    Attributes:
        start: the token before each document.
        end: the tokens after it; without any, the next one's start says that it ended.
        prompted: documents are prompts with answers.
    """

    start: int
    end: list[int]
    prompted: bool

    @abc.abstractmethod
    def encode(
        self, texts: pa.Array | list[str], max_length: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all texts, one after the other, and how many each has."""

    @abc.abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of tokens."""

    def check_length(self, length: int) -> None:  # noqa: B027  most have no limit
        """Refuse windows of so many tokens where a network has fewer positions."""

    def documents(self, texts: pa.Array) -> Encoded:
        """Each text between its start and its end."""
        ends = [(number, None) for number in self.end]
        start = (self.start, None)
        ids, lengths = _in_turn(len(texts), [start, self.encode(texts), *ends])
        unlabelled = np.full(len(lengths), 1 if self.end else 0)
        return Encoded(ids, lengths, unlabelled)

    def answers(self, prompts: list[str], answers: list[str]) -> Encoded:
        """Each prompt with its answer. An answer always has an end of its own."""
        before = _in_turn(len(prompts), [(self.start, None), self.encode(self.questions(prompts))])
        ends = [(number, None) for number in self.end or [self.start]]
        ids, lengths = _in_turn(len(answers), [before, self.encode(answers), *ends])
        return Encoded(ids, lengths, before[1])

    def questions(self, prompts: list[str]) -> list[str]:
        """Each prompt as it stands before its answer."""
        return [f"{prompt}\n" for prompt in prompts]

    def beginning(self, text: str) -> list[int]:
        """What is given to a network that is to continue, or to answer, a text."""
        given = self.questions([text]) if self.prompted else [text]
        ids, _ = self.encode(given) if given[0] else (np.array([], np.int64), None)
        return [self.start, *map(int, ids)]


class ByteTokens(Tokens):
    """UTF-8 bytes plus one; 0 starts a document."""

    start = 0

    def __init__(self, prompted: bool = False) -> None:
        self.end = []
        self.prompted = prompted

    def encode(
        self, texts: pa.Array | list[str], max_length: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray]:
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        encoded = [string.encode("utf-8", "replace")[:max_length] for string in strings]
        ids = np.frombuffer(b"".join(encoded), np.uint8) + np.uint8(1)
        return ids, np.array([len(content) for content in encoded])

    def decode(self, ids: list[int]) -> str:
        return bytes(number - 1 for number in ids if number > 0).decode("utf-8", "replace")


class PretrainedTokens(PretrainedTokenizer, Tokens):
    """A checkpoint's own tokens, of whole documents.

    A checkpoint without a token for the start has one for the end, which does for both: GPT-2.

    Prompts and answers are written as its chat template says, where it has one, and then without
    another start. A template is a checkpoint's own text: transformers renders it in Jinja's
    sandbox, where it can neither read files nor call anything, but may take long.
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
        self.start: int = last if first is None else first
        self.end: list[int] = [] if last in (None, self.start) else [last]
        self.has_template = bool(getattr(self.tokenizer, "chat_template", None))

    def encode(
        self, texts: pa.Array | list[str], max_length: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray]:
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        rows = self.tokenizer(strings, add_special_tokens=False, verbose=False)["input_ids"]
        dtype = np.min_scalar_type(len(self.tokenizer))
        ids = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        return ids, np.array([len(row) for row in rows])

    def check_length(self, length: int) -> None:
        if self.positions and length > self.positions:
            raise UserError(
                f"--max_length {length} is more than the {self.positions} positions of "
                f"--model_name {self.name!r}",
                f"give at most {self.positions}",
            )

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def answers(self, prompts: list[str], answers: list[str]) -> Encoded:
        """See `Tokens.answers`. A template that ends no answer gets the end of a text."""
        if not self.has_template:
            return super().answers(prompts, answers)
        questions = self.questions(prompts)
        given = []
        for prompt, answer, question in zip(prompts, answers, questions, strict=True):
            whole = self._rendered(prompt, answer)
            if not whole.startswith(question):
                raise UserError(
                    f"The chat template of --model_name {self.name!r} writes a prompt in another "
                    "way where an answer follows, so the answer's tokens are not known",
                    "train without --prompt_column, on texts that hold both",
                )
            given.append(whole.removeprefix(question))
        before = self.encode(questions)
        after = self.encode(given)
        ends = self.end or [self.start]
        stops = after[1].cumsum()
        ended = np.concatenate([[0], np.cumsum(np.isin(after[0], ends))])
        unended = (ended[stops] == ended[stops - after[1]]).astype(np.int64)
        parts = [before, after, *((number, unended) for number in ends)]
        ids, lengths = _in_turn(len(prompts), parts)
        return Encoded(ids, lengths, np.maximum(before[1], 1))

    def questions(self, prompts: list[str]) -> list[str]:
        if not self.has_template:
            return super().questions(prompts)
        return [self._rendered(prompt) for prompt in prompts]

    def beginning(self, text: str) -> list[int]:
        ids = super().beginning(text)
        return ids[1:] if self.prompted and self.has_template else ids

    def _rendered(self, prompt: str, answer: str | None = None) -> str:
        """A conversation of one turn, up to the answer's beginning where there is none."""
        messages = [{"role": "user", "content": prompt}]
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=answer is None
            )
        except Exception as error:  # of Jinja, and what a template raises itself
            raise UserError(
                f"The chat template of --model_name {self.name!r} does not render a prompt and "
                f"its answer ({root_cause(error)})",
                "train without --prompt_column, on texts that hold both",
            ) from error
        return str(rendered)


def _in_turn(rows: int, parts: Sequence[tuple[Any, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens that consist of a row of each part, in this order.

    Args:
        parts: the tokens of all rows and how many each row has; or a token, and how often it stands
            in each row, None for once.
    """
    dtype = np.result_type(*(ids for ids, _ in parts if isinstance(ids, np.ndarray)))
    filled = []
    for ids, lengths in parts:
        lengths = np.ones(rows, np.int64) if lengths is None else np.asarray(lengths, np.int64)
        ids = ids if isinstance(ids, np.ndarray) else np.full(lengths.sum(), ids, dtype)
        filled.append((ids, lengths))
    total = np.sum([lengths for _, lengths in filled], axis=0)
    row = np.empty(total.sum(), dtype)
    at = total.cumsum() - total  # where the next part of each row begins
    for ids, lengths in filled:
        inside = np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths)
        row[np.repeat(at, lengths) + inside] = ids
        at = at + lengths
    return row, total


def text_files(dataset: str, builtin: Sequence[str] = ()) -> dict[str, list[Path]]:
    """The plain text files that ``dataset`` names, by split; none where it names something else.

    It is one file, or a folder without tables. Files are of the splits that their names tell,
    where each has such a word and one of them is for training; else all are for training, and a
    warning names the words that were not followed.

    Args:
        dataset: as `tables.locate` takes it.
        builtin: names that the caller reads without a file.

    Raises:
        UserError: as `tables.locate`.
    """
    root = None if dataset in builtin else tables.locate(dataset, builtin)
    if root is None:
        return {}
    if root.is_file():
        return {"train": [root]} if root.suffix.lower() in TEXT_FILES else {}
    files = sorted(path for path in root.rglob("*") if path.is_file())
    files = [path for path in files if not tables.is_hidden(path.relative_to(root))]
    texts = [path for path in files if path.suffix.lower() in TEXT_FILES]
    table = next(filter(tables.is_table, files), None)
    if table is None:
        return _by_split(texts, root) if texts else {}
    data = [path for path in texts if not path.stem.lower().startswith(ABOUT_DATA)]
    if data:
        print(
            f"warning: {len(data):,} plain text files, as {data[0]}, are not read: {table} is a "
            "table, and one kind of files is read at a time",
            file=sys.stderr,
        )
    return {}


def _by_split(files: list[Path], root: Path) -> dict[str, list[Path]]:
    splits: dict[str, list[Path]] = {}
    untold = []
    for file in files:
        telling = [word for word in tables.words_of(file, root) if word in tables.SPLITS]
        if telling:
            splits.setdefault(tables.SPLITS[telling[-1]], []).append(file)
        else:
            untold.append(file)
    others = [file for split, paths in splits.items() if split != "train" for file in paths]
    if others and "train" in splits and not untold:
        return splits
    if others:
        reason = f"{untold[0]} has no such name" if untold else "none is named train"
        print(
            f"warning: {len(others):,} text files, as {others[0]}, are named like another split, "
            f"and are read for training, since {reason}; where they are splits, put all files "
            "into folders named train, val and test",
            file=sys.stderr,
        )
    return {"train": files}


def read_splits(files: Mapping[str, list[Path]], splits: Sequence[str]) -> dict[str, tables.Pieces]:
    """The documents of text files, of each split that there is.

    A few files for training, of which other splits would have to be made, are divided.
    """
    first = splits[0]
    is_divided = set(files) != set(splits) and len(files[first]) < len(splits)
    return {
        split: read_texts(paths, DIVIDED if is_divided and split == first else 1)
        for split, paths in files.items()
    }


def read_texts(files: list[Path], parts: int = 1) -> tables.Pieces:
    """Each file a document, or ``parts`` of them, as long as each other, which lines begin.

    Bytes that are no UTF-8 become U+FFFD; a line says of which files.
    """
    unreadable: list[Path] = []
    for at in range(0, len(files), PIECE):
        texts = []
        for path in files[at : at + PIECE]:
            try:
                content = path.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError:
                content = path.read_text(encoding="utf-8-sig", errors="replace")
                unreadable.append(path)
            texts += _divided(content, parts)
        yield [pa.array(texts)]
    if parts > 1:
        print(
            f"{', '.join(map(str, files))}: divided into {parts} documents, so that there are "
            "some to validate and to test with",
            flush=True,
        )
    if unreadable:
        print(
            f"warning: {len(unreadable):,} of {len(files):,} files are not UTF-8, as "
            f"{unreadable[0]}: each byte that cannot be read is replaced; convert them to UTF-8",
            flush=True,
        )


def _divided(content: str, parts: int) -> list[str]:
    """Consecutive parts of a text, each from a line's beginning; fewer where lines are fewer."""
    if parts == 1:
        return [content]
    lines = content.splitlines(keepends=True)
    ends = np.cumsum([len(line) for line in lines])
    wanted = np.arange(1, parts + 1) * len(content) / parts
    bounds = np.unique([0, *np.searchsorted(ends, wanted - 0.5) + 1])
    return ["".join(lines[start:stop]) for start, stop in itertools.pairwise(bounds)]


def encode(pieces: tables.Pieces, split: str, tokens: Tokens) -> Iterator[dict[str, np.ndarray]]:
    """Documents as arrays to be stored; those without a text are left out, and a line says it.

    ``ids`` are the tokens of all; ``starts`` and ``lengths`` say which are a document's,
    ``unlabelled`` how many of its first are no labels, ``bytes`` how long its text is.

    Args:
        pieces: a column of texts, and where tokens are ``prompted`` another one of prompts.
    """
    total = rows = empty = 0
    for texts, *others in pieces:
        numbers = np.arange(rows, rows + len(texts))
        rows += len(texts)
        if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
            kept = pc.fill_null(pc.not_equal(pc.binary_length(texts), 0), False)
            texts, others = texts.filter(kept), [column.filter(kept) for column in others]
            empty += len(numbers) - len(texts)
            numbers = numbers[kept.to_numpy(zero_copy_only=False)]
        if not len(texts):
            continue
        texts = text.check_texts(texts, "text", split, numbers)
        if tokens.prompted:
            prompts = text.check_texts(others[0], "prompt", split, numbers)
            encoded = tokens.answers(prompts.to_pylist(), texts.to_pylist())
        else:
            encoded = tokens.documents(texts)
        lengths = encoded.lengths
        yield {
            "ids": encoded.ids,
            "starts": total + np.cumsum(lengths) - lengths,
            "lengths": lengths,
            "unlabelled": encoded.unlabelled,
            "bytes": pc.binary_length(texts).to_numpy().astype(np.int64),
        }
        total += len(encoded.ids)
    if empty:
        print(
            f"warning: {empty:,} of {rows:,} documents of the {split} split have no text and are "
            "left out",
            flush=True,
        )


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
    for split in splits:
        if split not in given and (scratch / split).exists():
            problem = f"The {split} split that was given has no text"
            raise UserError(problem, f"give it some, or take its file away: {first} is divided")
    chosen = {}
    for split in given:
        count = len(store.arrays(scratch / split)["lengths"])
        chosen[split] = (split, np.random.default_rng(seed).permutation(count))
    missing = [split for split in splits if split not in given]
    _, order = chosen[first]
    held_out = max(1, len(order) // HOLD_OUT)
    if len(order) <= held_out * len(missing):
        problem = f"Training, validation and test cannot be made of {len(order)} document(s)"
        raise UserError(problem, "give more of them, or files for each")
    for split in missing:
        chosen[split] = (first, order[:held_out])
        order = order[held_out:]
    chosen[first] = (first, order)
    return chosen


def packed(
    documents: dict[str, np.ndarray], numbers: np.ndarray, filler: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """The tokens of these documents, ``ids``, and what each is for, ``uses``.

    Args:
        filler: tokens that follow the last document, of no document and no labels.
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
    """Write where windows start, and of how many of their tokens labels may come.

    Windows overlap by a token; the last tokens, too few, are left out.

    Args:
        whole: each begins with a document, and its labels are those of the documents that are whole
            in it. What is left of a longer one than a window is left out; a line says of how many.
            The tokens have to end with a ``filler`` of a window.
    """
    arrays = store.arrays(folder / split)
    tokens = len(arrays["ids"])
    if whole:
        firsts = np.flatnonzero(arrays["uses"] & FIRST)
        firsts = firsts[firsts <= tokens - length]  # the first of the filler is the end of the last
        starts, lengths = whole_documents(firsts, length)
        cut = int((np.diff(firsts) > length + 1).sum())
        if cut:
            print(
                f"{cut:,} of {len(firsts) - 1:,} documents of the {split} split have more tokens "
                f"than a window of {length}, and end with it",
                flush=True,
            )
    else:
        starts = np.arange((tokens - 1) // length, dtype=np.int64) * length
        lengths = np.full(len(starts), length + 1, np.int64)
    if not len(starts):
        problem = f"The {split} split has {tokens} tokens, too few for a window of {length}"
        raise UserError(problem, "give more text, or a smaller --max_length")
    store.write(folder / split, [{"windows": starts, "lengths": lengths}])
    store.write(folder / store.INDEX, [{split: np.arange(len(starts), dtype=np.int64)}])


def whole_documents(firsts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Where windows start that hold as many whole documents as fit, and how many tokens these have.

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


def gather(
    arrays: dict[str, np.ndarray], windows: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of these windows, (N, length + 1); which is its document's first, (N, length + 1);
    and which of those after it are labels, (N, length).
    """
    place = np.arange(length + 1)
    at = arrays["windows"][windows][:, None] + place
    uses = arrays["uses"][at]
    labels = (uses & LABEL > 0) & (place < arrays["lengths"][windows][:, None])
    return arrays["ids"][at].astype(np.int64), uses & FIRST > 0, labels[:, 1:]


def labelled(folder: Path, split: str, length: int) -> float:
    """The share of the windows' tokens that are labels; UserError where there is none."""
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


def labels_per_byte(documents: dict[str, np.ndarray], numbers: np.ndarray) -> float:
    """How many tokens are predicted for each byte of text; one, or more, ends each document."""
    labels = documents["lengths"][numbers] - documents["unlabelled"][numbers]
    return float(labels.sum() / documents["bytes"][numbers].sum())


def positions(first: np.ndarray) -> np.ndarray:
    """(B, L): each token's number in its document, or in the window where that began before.

    Args:
        first: (B, L), which tokens are their document's first.
    """
    place = np.arange(first.shape[1])
    return place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
