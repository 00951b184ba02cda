"""The data: documents, encoded and packed into windows once per node, then memory-mapped.

The way of a document: `Data.prepare_data` reads, encodes and stores it (documents.encode); its
split gets it as part of one long row of tokens, cut into windows of `max_length`; a loader chooses
the windows of each batch (batches.loader), and `WindowDataset` gathers them. With `prompt_column` a
document is a prompt and its answer, a window holds whole documents, and answers alone are labels.

To train on something else, replace this file: README.md, "Your own task".
"""

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from options import Options
from smlightning.data import batches, documents, store, tables
from smlightning.errors import UserError
from smlightning.pretrained import tokenizer_files

VERSION = 3  # of what prepare_data writes; another number prepares all data anew
BUILTIN = "stdlib"
BUILTIN_BYTES = 2_000_000  # so many of the built-in text are read: minutes of training on two cores
NO_PROSE = {"test", "tests", "idle_test", "lib2to3", "site-packages", "encodings", "pydoc_data"}
TEXT_COLUMNS = ("text", "content", "document", "sentence", "code", "body", "story")
ANSWER_COLUMNS = ("answer", "completion", "response", "output")  # beside prompts
SPLITS = ("train", "val", "test")
NO_LABEL = -100  # what no loss counts


def tokens_of(model_name: str, prompted: bool = False) -> documents.Tokens:
    """Bytes for the byte transformer, else the checkpoint's own; UserError where there is none."""
    if model_name == "bytelm":
        return documents.ByteTokens(prompted)
    return documents.PretrainedTokens(model_name, prompted)


class Data(pl.LightningDataModule):
    """Windows of text. Options: the fields of `options.Options`.

    A batch is a dictionary of B windows of L tokens: ``input_ids``, ``labels``, the token that
    follows each, and ``position_ids``, counted from each document's start, all (B, L) int64;
    ``weight`` (B,) float32, 0 for a filler that evens out the ranks, else 1; ``scale``: that of
    `batches.Share`, over the share of tokens that are labels in the split.

    ``tokens_per_byte``, of each split, makes bits per byte of a loss per token.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.options = Options(dataset=dataset, **options)
        self.prepare_data_per_node = True  # every node has a disk of its own
        self.batch_size = self.options.batch_size  # for the log
        self.splits: dict[str, store.Rows] = {}
        self.tokens_per_byte: dict[str, float] = {}
        self.fingerprint = ""  # of tokens and their order, after setup
        self.texts = documents.text_files(dataset, [BUILTIN])
        read_here = dataset == BUILTIN or self.texts
        self.source = None if read_here else tables.find_source(dataset, [BUILTIN])
        self.prompted = bool(self.options.prompt_column)
        for name in ("prompt_column", "text_column"):
            column = getattr(self.options, name)
            if column and not self.source:
                problem = f"--{name} {column}: {dataset!r} has no columns"
                raise UserError(problem, "give a table that has it, or leave it out")
        self.path = store.path_for(self.options.data_dir, dataset, self._facts())

    def _facts(self) -> list[Any]:
        """All that decides what `prepare_data` writes."""
        chosen = self.options
        source: list[Any] = [BUILTIN, *sys.version_info[:3]]
        if self.source or self.texts:
            files = [file for split in self.texts.values() for file in split]
            source = self.source.facts() if self.source else tables.file_stamps(files)
        tokens = tables.file_stamps(tokenizer_files(chosen.model_name))
        return [
            VERSION, source, chosen.model_name, tokens, chosen.max_length, chosen.text_column,
            chosen.prompt_column, chosen.seed,
        ]  # fmt: skip

    def prepare_data(self) -> None:
        """Store all windows at ``self.path``, unless a verified copy is there. Once per node.

        Raises:
            UserError: the data is unavailable or too small.
        """
        with store.prepare(self.path, f"windows of {self.options.dataset!r}") as folder:
            if folder is None:
                return
            tokens = tokens_of(self.options.model_name, self.prompted)
            length = self.options.max_length
            tokens.check_length(length)
            scratch = folder / "scratch"
            for split, pieces in self._read(scratch).items():
                store.write(scratch / split, documents.encode(pieces, split, tokens))
            facts: dict[str, dict[str, float]] = {"tokens_per_byte": {}, "labelled": {}}
            chosen = documents.split_documents(scratch, SPLITS, self.options.seed)
            for split, (given, numbers) in chosen.items():
                encoded = store.arrays(scratch / given)
                filler = length if self.prompted else 0
                store.write(folder / split, documents.packed(encoded, numbers, filler))
                documents.write_windows(folder, split, length, whole=self.prompted)
                facts["tokens_per_byte"][split] = documents.labels_per_byte(encoded, numbers)
                facts["labelled"][split] = documents.labelled(folder, split, length)
            shutil.rmtree(scratch)
            store.write_facts(folder, facts)

    def _read(self, scratch: Path) -> dict[str, tables.Pieces]:
        """The documents of each split, piece by piece."""
        if self.source:
            usual = TEXT_COLUMNS + ANSWER_COLUMNS if self.prompted else TEXT_COLUMNS
            columns = [tables.Column("text", self.options.text_column, usual)]
            if self.prompted:
                columns.append(tables.Column("prompt", self.options.prompt_column, ()))
            return tables.read(self.source, columns, scratch / "files")
        return documents.read_splits(self.texts or {"train": standard_library()}, SPLITS)

    def setup(self, stage: str | None = None) -> None:
        """Open the stored data, memory-mapped; a second call changes nothing."""
        if not self.splits:
            self.facts = store.read_facts(self.path)
            self.tokens_per_byte = self.facts["tokens_per_byte"]
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
        dataset = WindowDataset(rows, chosen.max_length, self.facts["labelled"][split])
        lengths = np.full(len(rows), chosen.max_length, np.int32)
        return batches.loader(
            dataset, lengths, chosen.batch_size, self.trainer, seed, chosen.num_workers
        )


class WindowDataset(torch.utils.data.Dataset):
    """Gathers the windows of a `batches.Share` into the batch that `Data` describes."""

    def __init__(self, rows: store.Rows, length: int, labelled: float) -> None:
        self.rows, self.length = rows, length
        self.labelled = labelled  # the share of the split's tokens that are labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, share: batches.Share) -> dict[str, Any]:
        windows = self.rows.index[share.rows]
        ids, first, is_label = documents.gather(self.rows.arrays, windows, self.length)
        labels = np.where(is_label, ids[:, 1:], NO_LABEL)
        weight = np.arange(len(ids)) < share.real
        return {
            "input_ids": torch.from_numpy(np.ascontiguousarray(ids[:, :-1])),
            "labels": torch.from_numpy(labels),
            "position_ids": torch.from_numpy(documents.positions(first[:, :-1])),
            "weight": torch.from_numpy(weight.astype(np.float32)),
            "scale": share.scale / self.labelled,
        }


def standard_library() -> list[Path]:
    """Sources of Python's standard library, without tests, in an order that mixes subjects.

    License: the Python Software Foundation's (PSF-2.0), https://docs.python.org/3/license.html.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if not NO_PROSE & set(path.parts)]
    order = np.random.default_rng(0).permutation(len(files))
    sizes = np.cumsum([files[number].stat().st_size for number in order])
    return [files[number] for number in order[: int((sizes <= BUILTIN_BYTES).sum())]]
