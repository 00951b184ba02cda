"""Texts, packed into windows of tokens: Python's standard library, a folder, or a data set of the
hub.

`datasets` reads the texts, encodes them and keeps the windows in its cache under `data_dir`. Each
text begins with a mark; the texts follow each other without padding.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pytorch_lightning as pl
import torch
from torch.utils.data import Dataset

from options import Options
from smlightning import hub
from smlightning.data import batches
from smlightning.errors import UserError
from text_tokens import mark, tokenizer

SPLITS = ("train", "validation", "test")  # as `datasets` names them
HOLD_OUT = 0.1  # of the training texts, for each other split that is missing
BUILTIN_FILES = 80  # of the standard library: 2 MB, minutes of training on two cores
TOGETHER = 1000  # texts packed together; the tokens after their last whole window are left out


class Data(pl.LightningDataModule):
    """A batch of B windows of L tokens: ``input_ids`` (B, L); ``labels`` (B, L), the token after
    each; ``weight`` and ``scale``: `batches.RankBatch`.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = Options(dataset=dataset, **options)

    def prepare_data(self) -> None:
        load(self.options)

    def setup(self, stage: str | None = None) -> None:
        self.splits = load(self.options)
        self.fingerprint = fingerprint(self.splits)

    def train_dataloader(self) -> batches.RowLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> batches.RowLoader:
        return self._loader("validation")

    def test_dataloader(self) -> batches.RowLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> batches.RowLoader:
        windows, chosen = Windows(self.splits[split]), self.options
        lengths = [chosen.max_length] * len(windows)
        return batches.loader(
            windows, lengths, chosen.batch_size, self.trainer, seed, chosen.num_workers
        )


@dataclass
class Windows(Dataset):
    """Gathers the windows of a `batches.RankBatch` into the batch that `Data` describes."""

    rows: datasets.Dataset

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: batches.RankBatch) -> dict[str, Any]:
        ids = torch.tensor(self.rows[batch.rows.tolist()]["ids"])
        return {
            "input_ids": ids[:, :-1],
            "labels": ids[:, 1:],
            "weight": batch.weight(),
            "scale": batch.scale,
        }


def load(options: Options) -> datasets.DatasetDict:
    """The windows of each split, from the cache if they are there.

    Raises:
        UserError: the data is unavailable, has no such column or is too small.
    """
    datasets.disable_progress_bars()
    texts = complete(read(options), options.seed)
    column = options.text_column
    windows = datasets.DatasetDict()
    for split, rows in texts.items():
        if column not in rows.column_names:
            names = ", ".join(rows.column_names)
            raise UserError(f"--text_column {column!r}: the data has {names}", "name one of them")
        windows[split] = rows.map(
            pack,
            batched=True,
            batch_size=TOGETHER,
            remove_columns=rows.column_names,
            fn_kwargs={
                "column": column,
                "model_name": options.model_name,
                "length": options.max_length,
            },
        )
        if not len(windows[split]):
            raise UserError(
                f"the {split} split is too small for a window of {options.max_length} tokens",
                "give more text, or a smaller --max_length",
            )
    return windows


def pack(batch: Any, column: str, model_name: str, length: int) -> dict[str, list[list[int]]]:
    """Windows of ``length`` tokens and the next one; each begins with the last token before it."""
    tokens = tokenizer(model_name)
    texts = [text for text in batch[column] if text]
    row: list[int] = []
    for ids in tokens(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []:
        row += [mark(tokens), *ids]
    starts = range(0, len(row) - length, length)
    return {"ids": [row[start : start + length + 1] for start in starts]}


def read(options: Options) -> datasets.DatasetDict:
    """The texts of each split."""
    cache = str(Path(options.data_dir).absolute())
    if options.dataset == "stdlib":
        texts = datasets.Dataset.from_generator(standard_library, cache_dir=cache)
        return datasets.DatasetDict(train=texts)
    name = options.dataset
    if name == "training":
        name = os.environ.get("SM_CHANNEL_TRAINING", name)
    with hub.errors(f"--dataset {options.dataset!r} could not be read", Path(name).exists()):
        return datasets.load_dataset(name, cache_dir=cache)


def complete(splits: datasets.DatasetDict, seed: int) -> datasets.DatasetDict:
    """The three SPLITS; each that is missing gets HOLD_OUT of the training texts."""
    rows = dict(splits)
    for missing in [split for split in SPLITS if split not in rows]:
        try:
            parts = rows["train"].train_test_split(HOLD_OUT, seed=seed)
        except (KeyError, ValueError) as error:  # no training texts, or too few
            raise UserError(f"the data gives no split {missing} ({error})", "add texts") from None
        rows["train"], rows[missing] = parts["train"], parts["test"]
    return datasets.DatasetDict({split: rows[split] for split in SPLITS})


def standard_library() -> Iterator[dict[str, str]]:
    """Sources of Python's standard library: PSF-2.0, https://docs.python.org/3/license.html."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for file in files[:BUILTIN_FILES]:
        yield {"text": file.read_text(encoding="utf-8")}


def fingerprint(splits: datasets.DatasetDict) -> str:
    """A digest of all windows; a run resumes only with the same."""
    found = hashlib.sha256()
    for split, rows in splits.items():
        found.update(f"{split} {len(rows)}".encode())
        for table in rows.with_format("arrow").iter(TOGETHER):
            for chunk in table["ids"].chunks:
                found.update(chunk.flatten().to_numpy(zero_copy_only=False).tobytes())
    return found.hexdigest()
