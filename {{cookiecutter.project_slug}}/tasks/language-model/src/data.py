"""The data: documents, encoded and packed into windows once per node, then memory-mapped.

`Data.prepare_data` reads the documents of each split (tables.read), encodes them, splits off what
is missing, packs the documents into one long row of tokens, and cuts it into windows of
`max_length` (documents.write). A loader chooses the windows of each batch (batches.loader), and
`WindowDataset` gathers them. With `prompt_column` a document is a prompt and its answer, a window
holds whole documents, and only answers are labels.

To train on something else, replace this file: docs/data_and_model.md.
"""

import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from smlightning.data import batches, documents, store, tables
from smlightning.data.module import StoredData
from smlightning.pretrained import tokenizer_files

from options import Options

VERSION = 4  # of the stored data; another number prepares all data anew
BUILTIN = "stdlib"
BUILTIN_BYTES = 2_000_000  # of the built-in text: minutes of training on two cores
NO_PROSE = {"test", "tests", "idle_test", "lib2to3", "site-packages", "encodings", "pydoc_data"}
TEXT_COLUMNS = ("text", "content", "document", "sentence", "code", "body", "story")
ANSWER_COLUMNS = ("answer", "completion", "response", "output")  # next to prompts
NO_LABEL = -100  # a token that losses ignore


def tokens_of(model_name: str, prompted: bool = False) -> documents.Tokens:
    """Bytes for the byte transformer, else the checkpoint's own; UserError if it has none."""
    if model_name == "bytelm":
        return documents.ByteTokens(prompted)
    return documents.PretrainedTokens(model_name, prompted)


class Data(StoredData):
    """Windows of text; ``options`` are the fields of `options.Options`.

    A batch is a dictionary of B windows of L tokens: ``input_ids``, ``labels``, the token that
    follows each, and ``position_ids``, counted from each document's start, all (B, L) int64;
    ``weight`` (B,) float32, 0 for a filler that evens out the ranks, else 1; ``scale``: that of
    `batches.Share`, over the share of tokens that are labels in the split.

    ``tokens_per_byte``, for each split, converts a loss per token to bits per byte.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        chosen = Options(dataset=dataset, **options)
        self.tokens_per_byte: dict[str, float] = {}
        self.prompted = bool(chosen.prompt_column)
        self.source = None if dataset == BUILTIN else tables.find_source(dataset, texts=True)
        source = self.source.facts() if self.source else [BUILTIN, *sys.version_info[:3]]
        tokens = tables.file_stamps(tokenizer_files(chosen.model_name))
        columns = [chosen.text_column, chosen.prompt_column]
        model, length = chosen.model_name, chosen.max_length
        super().__init__(chosen, [VERSION, source, model, tokens, length, columns, chosen.seed])

    def prepare_data(self) -> None:
        """Store all windows at ``self.path``, unless they are there. Once per node.

        Raises:
            UserError: the data is unavailable or too small.
        """
        with store.prepare(self.path, f"windows of {self.options.dataset!r}") as folder:
            if folder is None:
                return
            tokens = tokens_of(self.options.model_name, self.prompted)
            length, seed = self.options.max_length, self.options.seed
            facts = documents.write(folder, self._read(), tokens, length, seed)
            store.write_facts(folder, facts)

    def _read(self) -> dict[str, tables.Pieces]:
        """The documents of each split, piece by piece."""
        usual = TEXT_COLUMNS + ANSWER_COLUMNS if self.prompted else TEXT_COLUMNS
        columns = [tables.Column("text", self.options.text_column, usual)]
        if self.prompted:
            columns.append(tables.Column("prompt", self.options.prompt_column))
        return tables.read(self.source or standard_library(), columns)

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        self.tokens_per_byte = self.facts["tokens_per_byte"]

    def dataset(self, split: str) -> "WindowDataset":
        labelled = self.facts["labelled"][split]
        return WindowDataset(self.splits[split], self.options.max_length, labelled)

    def lengths(self, split: str) -> np.ndarray:
        return np.full(len(self.splits[split]), self.options.max_length, np.int32)


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
        return {
            "input_ids": torch.from_numpy(np.ascontiguousarray(ids[:, :-1])),
            "labels": torch.from_numpy(labels),
            "position_ids": torch.from_numpy(documents.positions(first[:, :-1])),
            "weight": share.weight(),
            "scale": share.scale / self.labelled,
        }


def standard_library() -> tables.Source:
    """Sources of Python's standard library, without tests, in an order that mixes subjects.

    License: the Python Software Foundation's (PSF-2.0), https://docs.python.org/3/license.html.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if not NO_PROSE & set(path.parts)]
    order = np.random.default_rng(0).permutation(len(files))
    sizes = np.cumsum([files[number].stat().st_size for number in order])
    chosen = order[: int((sizes <= BUILTIN_BYTES).sum())]
    return tables.Source(BUILTIN, root, tuple(files[number] for number in chosen))
