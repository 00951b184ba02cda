"""A table's rows: read as text by `datasets`, encoded with the statistics of the training rows."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from offers import rows as offers
from options import Options, names
from smlightning.data import prepared, sources
from smlightning.errors import UserError
from table import Columns, Rows

VERSION = 1  # of the stored data; another number prepares all data anew
SPLITS = ("train", "validation", "test")


class Data(pl.LightningDataModule):
    """A tenth of the rows validates and a tenth tests, where the data has no such split.

    A batch of B rows: numbers (B, 2 × columns) float32, words (B, columns, words) int64, targets
    (B,): `table.Columns`.

    Attributes:
        columns: after `setup`.
        fingerprint: a digest of all rows, after `setup`; a run resumes only with it.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = chosen = Options(dataset=dataset, **options)
        self.source = None if dataset == "offers" else sources.find(dataset)
        source = self.source.facts() if self.source else [dataset]
        columns = [chosen.target, chosen.task, chosen.numbers, chosen.texts, chosen.buckets]
        facts = [VERSION, source, columns, chosen.seed]
        self.path = prepared.path_for(chosen.data_dir, dataset, facts)
        self.splits: dict[str, TensorDataset] = {}

    def prepare_data(self) -> None:
        """Store rows of each split as text, and the columns of the training rows. Once per node.

        Raises:
            UserError: the data is unavailable or invalid.
        """
        with prepared.building(self.path) as folder:
            if folder:
                rows = self._read(folder / prepared.CACHE)
                columns = Columns.of(texts(rows["train"]), self.options)
                for split, part in rows.items():
                    columns.targets(texts(part))  # raises for a wrong value now
                    columns.encode(texts(part))
                    part.map(cache_file_name=str(folder / f"{split}.arrow"), new_fingerprint=split)
                prepared.seal(folder, {"columns": asdict(columns)})

    def _read(self, cache: Path) -> dict[str, datasets.Dataset]:
        if self.source is None:
            found = {"train": datasets.Dataset.from_dict(offers())}
        else:
            chosen = self.options
            wanted = [chosen.target, *names(chosen.numbers), *names(chosen.texts)]
            columns = [sources.Column(name, name) for name in wanted]
            tables = sources.read(self.source, columns, cache)
            parts = {
                split: [table.rows for table in tables if table.split == split] for split in SPLITS
            }
            found = {
                split: datasets.concatenate_datasets(part) for split, part in parts.items() if part
            }
        for split in SPLITS[1:]:
            if split not in found:
                if len(found["train"]) < 10:
                    raise UserError(f"no row is left for the {split} split", "give more rows")
                both = found["train"].train_test_split(0.1, seed=self.options.seed)
                found["train"], found[split] = both["train"], both["test"]
        return {split: part.flatten_indices() for split, part in found.items()}

    def setup(self, stage: str | None = None) -> None:
        """Encode the stored rows; a second call changes nothing."""
        if not self.splits:
            stored, facts = prepared.load(self.path)
            self.fingerprint = facts["fingerprint"]
            self.columns = Columns(**facts["columns"])
            for split, part in stored.items():
                rows: Rows = texts(part)
                tensors = [*self.columns.encode(rows), self.columns.targets(rows)]
                self.splits[split] = TensorDataset(*tensors)

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.splits["train"], self.options.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.splits["validation"], self.options.batch_size)

    def test_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.splits["test"], self.options.batch_size)


def texts(rows: datasets.Dataset) -> Rows:
    """The columns of all rows; an unknown value is empty."""
    return {name: [value or "" for value in values] for name, values in rows[:].items()}
