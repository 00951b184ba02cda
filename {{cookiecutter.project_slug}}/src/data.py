"""The data: read, encoded and stored once per node, then memory-mapped by every rank.

The way of a row: `Data.prepare_data` reads it (tables.read), encodes it (encode_rows) and stores
it (store.write); `Data.setup` opens the store; a loader chooses the rows of each batch
(batches.loader), and `BatchDataset` gathers them.

To train on something else, replace this file: README.md, "Your own task".
"""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from options import Options
from smlightning.data import batches, store, tables, text
from smlightning.errors import UserError
from smlightning.pretrained import PretrainedTokenizer, tokenizer_files
from smlightning.terminal import one_line

VERSION = 8  # of what prepare_data writes; another number prepares all data anew
BUILTIN = "cldr"
LANGUAGES = (
    "ar", "bg", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id",
    "it", "ja", "ko", "lt", "nl", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip
TEXT_COLUMNS = ("text", "sentence", "content", "phrase", "review", "document", "input")
LABEL_COLUMNS = ("label", "labels", "language", "category", "class", "target", "intent")
SPLITS = ("train", "val", "test")
HOLD_OUT = 10  # one row in ten validates, another one tests, where the data has no such split;
LARGEST = 50_000  # at most so many: more would tell little more, and every epoch waits for them
MANY = 100  # rows, most of them with a value of their own: these values are no labels


class Data(pl.LightningDataModule):
    """Texts and their labels. Options: the fields of `options.Options`.

    A batch is a dictionary of B samples, padded to the longest of them, L tokens:
    ``input_ids`` and ``attention_mask`` (B, L) int64; ``label`` (B,) int64; ``weight`` (B,)
    float32, 0 for a filler that evens out the ranks, else 1; ``scale``: `batches.Share`.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.options = Options(dataset=dataset, **options)
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.batch_size = self.options.batch_size  # for the log
        self.labels: list[str] = []
        self.splits: dict[str, store.Rows] = {}
        self.fingerprint = ""  # of tokens, labels and their order, after setup
        self.source = None if dataset == BUILTIN else tables.find_source(dataset, [BUILTIN])
        self.path = store.path_for(self.options.data_dir, dataset, self._facts())

    def _facts(self) -> list[Any]:
        """All that decides what `prepare_data` writes."""
        chosen = self.options
        source = self.source.facts() if self.source else [BUILTIN, version("babel")]
        tokens = tables.file_stamps(tokenizer_files(chosen.model_name))
        columns = [chosen.text_column, chosen.label_column]
        cut, seed = chosen.max_length, chosen.seed
        return [VERSION, source, chosen.model_name, tokens, cut, columns, seed]

    def prepare_data(self) -> None:
        """Store all rows at ``self.path``, unless a verified copy is there. Once per node.

        Raises:
            UserError: the data is unavailable or invalid.
        """
        with store.prepare(self.path, f"texts of {self.options.dataset!r}") as folder:
            if folder is None:
                return
            tokens = tokenizer(self.options.model_name)
            codes: dict[str, int] = {}  # of the labels, in order of appearance
            for split, pieces in self._read(folder / "scratch").items():
                known = len(codes)
                encoded = encode_rows(pieces, split, tokens, self.options.max_length, codes)
                store.write(folder / split, encoded)
                check_labels(folder / split, list(codes), known)
            shutil.rmtree(folder / "scratch", ignore_errors=True)
            labels = sort_labels(folder, codes)
            tables.warn_of_missing_names("label", labels)
            write_splits(folder, self.options.seed)
            store.write_facts(folder, {"labels": labels, "pad_id": tokens.pad_id})

    def _read(self, scratch: Path) -> dict[str, tables.Pieces]:
        """Texts and labels of each split, piece by piece."""
        if self.source is None:
            return {"train": iter([[pa.array(column) for column in cldr()]])}
        columns = [
            tables.Column("text", self.options.text_column, TEXT_COLUMNS),
            tables.Column("label", self.options.label_column, LABEL_COLUMNS),
        ]
        return tables.read(self.source, columns, scratch)

    def setup(self, stage: str | None = None) -> None:
        """Open the stored data, memory-mapped; a second call changes nothing."""
        if not self.splits:
            facts = store.read_facts(self.path)
            self.labels, self.pad_id = facts["labels"], facts["pad_id"]
            self.fingerprint = store.fingerprint(self.path)
            self.splits = {split: store.Rows(self.path, split) for split in SPLITS}

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> DataLoader:
        rows, chosen = self.splits[split], self.options
        dataset = BatchDataset(rows, self.pad_id)
        lengths = rows.column("lengths")
        return batches.loader(
            dataset, lengths, chosen.batch_size, self.trainer, seed, chosen.num_workers
        )


class BatchDataset(torch.utils.data.Dataset):
    """Gathers the rows of a `batches.Share` into the batch that `Data` describes."""

    def __init__(self, rows: store.Rows, pad_id: int) -> None:
        self.rows = rows
        self.pad_id = pad_id

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, share: batches.Share) -> dict[str, Any]:
        arrays = self.rows.arrays
        at = self.rows.index[share.rows]
        starts, lengths = arrays["starts"][at], arrays["lengths"][at]
        input_ids, mask = batches.pad(arrays["ids"], starts, lengths, self.pad_id)
        weight = np.arange(len(at)) < share.real
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "label": torch.from_numpy(arrays["labels"][at].astype(np.int64)),
            "weight": torch.from_numpy(weight.astype(np.float32)),
            "scale": share.scale,
        }


def tokenizer(model_name: str) -> text.Tokenizer:
    """Bytes for the byte CNN, else the checkpoint's own; UserError where there is none."""
    return text.ByteTokenizer() if model_name == "bytecnn" else PretrainedTokenizer(model_name)


def encode_rows(
    pieces: tables.Pieces, split: str, tokens: text.Tokenizer, max_length: int, codes: dict
) -> Iterator[dict[str, np.ndarray]]:
    """Pieces of texts and labels as the arrays that are stored: those of `text.encode`, labels."""
    for arrays, (labels,) in text.encode(pieces, "text", split, tokens, max_length):
        yield {**arrays, "labels": encode_labels(labels, codes)}


def encode_labels(values: pa.Array, codes: dict[str, int]) -> np.ndarray:
    """(N,) int32: each label's code, -1 where it is null, empty or NaN. Adds new labels' codes."""
    if pa.types.is_nested(values.type):
        problem = "A label is a list or a struct; expected text or a number"
        raise UserError(problem, "name another column with --label_column")
    if isinstance(values.type, pa.BaseExtensionType):  # of datasets, for json on the hub
        problem = "The labels are of several types; expected text or numbers, of one type"
        raise UserError(problem, "write all of them as text")
    encoded = values.dictionary_encode()
    numbers = []
    for value in encoded.dictionary.to_pylist():
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas makes 1.0 of 1 where another value is missing
        name = str(value).strip()  # " yes" is no other label than "yes"
        missing = value is None or not name or value != value
        numbers.append(-1 if missing else codes.setdefault(name, len(codes)))
    numbers.append(-1)  # of null
    indices = encoded.indices.fill_null(len(numbers) - 1).to_numpy()
    return np.array(numbers, np.int32)[indices]


def check_labels(folder: Path, names: list[str], known: int) -> None:
    """Refuse a stored split whose labels cannot be used; remove one whose labels are secret.

    Args:
        names: of all labels so far; the first ``known`` are of earlier splits.
    """
    split = folder.name
    labels = store.arrays(folder).get("labels")
    wrong_column = "name the right column with --label_column"
    if labels is None:
        raise UserError(f"The {split} split is empty", "give at least one row")
    if split != "train" and labels.max() < 0:
        shutil.rmtree(folder)  # a public test set whose labels are kept secret tests nothing here
    elif labels.min() < 0:
        problem = f"Row {labels.argmin() + 1} of the {split} split has no label; expected one"
        raise UserError(problem, "correct or remove it")
    elif split == "train" and len(labels) >= MANY and 2 * len(names) > len(labels):
        values = f"{len(names):,} different values in {len(labels):,} rows of the train split"
        raise UserError(f"The label has {values}, so it names no classes", wrong_column)
    elif split == "train" and len(names) < 2:
        problem = f"The data has a single label, {names[0]!r}; two or more are needed"
        raise UserError(problem, wrong_column)
    elif split != "train" and len(names) > known:
        problem = f"The label {names[known][:40]!r} of the {split} split is not in training"
        raise UserError(problem, "add or remove it")
    for code, name in enumerate(names[known:], known):
        if one_line(name) != name:
            row = (labels == code).argmax() + 1
            problem = (
                f"Row {row} of the {split} split: the label {name[:40]!r} has a control character"
            )
            raise UserError(problem, "write labels as printable text on one line")


def stored_splits(folder: Path) -> list[str]:
    return [split for split in SPLITS if (folder / split).exists()]


def sort_labels(folder: Path, codes: dict[str, int]) -> list[str]:
    """Number the stored labels in order of name, not of appearance; returns the names."""
    labels = sorted(codes)
    numbers = {name: number for number, name in enumerate(labels)}
    new = np.array([numbers[name] for name in codes], np.int32)
    for split in stored_splits(folder):
        for chunk in store.chunks(store.arrays(folder / split, "r+")["labels"]):
            chunk[:] = new[chunk]
    return labels


def write_splits(folder: Path, seed: int) -> None:
    """Write which rows each split has; what is missing is held out of the rows for training."""
    given = stored_splits(folder)
    missing = [split for split in SPLITS if split not in given]
    for split in given:
        labels = store.arrays(folder / split)["labels"]
        splits = ["train", *missing] if split == "train" else [split]
        store.write(folder / store.INDEX, split_rows(labels, splits, seed))
    rows = store.arrays(folder / store.INDEX)
    for split in SPLITS:
        if split not in rows:
            problem = f"The {split} split is empty: the data has too few rows"
            raise UserError(problem, "add some, or a file for it")


def split_rows(labels: np.ndarray, splits: list[str], seed: int) -> Iterator[dict[str, np.ndarray]]:
    """The row numbers of each of ``splits``, a chunk of rows after the other.

    Of each label, one row in HOLD_OUT goes to each split but the first, which has all others; of
    large data fewer, at most LARGEST in all. One row of each label is never held out, so that
    training knows it. (`datasets` refuses to stratify where a label occurs once.)
    """
    step = max(HOLD_OUT, -(-len(labels) // LARGEST))
    smallest = np.min_scalar_type(len(labels))  # every rank holds these numbers
    random = np.random.default_rng(seed)
    known = np.zeros(labels.max() + 1, bool)
    first_row = passed = 0  # of the chunk; how many rows before it could be held out
    for chunk in store.chunks(labels):
        order = random.permutation(len(chunk))
        order = order[np.argsort(chunk[order], kind="stable")]  # by label, within one at random
        ordered = chunk[order]
        kept = (np.diff(ordered, prepend=-1) > 0) & ~known[ordered]
        known[ordered] = True
        order = order[~kept]
        split = np.zeros(len(chunk), np.int8)
        for number in range(1, len(splits)):
            split[order[(number - 1 - passed) % step :: step]] = number
        rows = {name: np.flatnonzero(split == i) + first_row for i, name in enumerate(splits)}
        yield {name: numbers.astype(smallest) for name, numbers in rows.items()}
        first_row += len(chunk)
        passed += len(order)


def cldr() -> tuple[list[str], list[str]]:
    """Names of territories, languages, currencies, scripts, months and days; their languages.

    Unicode's CLDR, as Babel carries it, without names that two of the languages share.
    """
    from babel import Locale

    written_in: dict[str, set[str]] = {}
    for language in LANGUAGES:
        locale = Locale.parse(language)
        lists = [locale.territories, locale.languages, locale.currencies, locale.scripts]
        for calendar in (locale.months, locale.days):
            lists += [names for widths in calendar.values() for names in widths.values()]
        for name in {name for names in lists for name in names.values()}:
            if any(character.isalpha() for character in name):
                written_in.setdefault(name, set()).add(language)
    unique = sorted(name for name, languages in written_in.items() if len(languages) == 1)
    return unique, [written_in[name].pop() for name in unique]
