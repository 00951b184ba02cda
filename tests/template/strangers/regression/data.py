"""Rows of numbers from a csv file with a header; the last column is predicted from the others."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from options import Options
from smlightning.data import batches
from smlightning.errors import UserError


class Data(pl.LightningDataModule):
    """Batches are dictionaries: ``x`` (B, features), ``y`` and ``weight`` (B,), and ``scale``:
    see smlightning.data.batches.
    """

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = Options(dataset=dataset, **options)

    def setup(self, stage: str | None = None) -> None:
        name = self.options.dataset
        path = Path(os.environ.get("SM_CHANNEL_TRAINING", name) if name == "training" else name)
        files = [*path.glob("*.csv")] if path.is_dir() else [path]
        if len(files) != 1 or not files[0].is_file():
            raise UserError(
                f"--dataset {name}: {path} is not a csv file, nor a folder with exactly one",
                "give either",
            )
        rows = np.loadtxt(files[0], delimiter=",", skiprows=1, dtype=np.float32)
        self.fingerprint = hashlib.sha256(rows.tobytes()).hexdigest()
        rows = np.random.default_rng(self.options.seed).permutation(rows)
        tenth = len(rows) // 10
        self.splits = {
            "test": rows[:tenth],
            "val": rows[tenth : 2 * tenth],
            "train": rows[2 * tenth :],
        }
        self.features = rows.shape[1] - 1

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def _loader(self, split: str, seed: int | None = None) -> DataLoader:
        rows = self.splits[split]
        lengths = np.ones(len(rows), dtype=np.int64)
        return batches.loader(Rows(rows), lengths, self.options.batch_size, self.trainer, seed, 0)


class Rows(Dataset):
    """One batch for each key of `batches.GlobalBatches`: rows, how many of them are real, and the
    loss's scale.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[list[int], int, float]) -> dict[str, Any]:
        indices, real, scale = key
        rows = torch.from_numpy(self.rows[indices])
        weight = (torch.arange(len(rows)) < real).float()
        return {"x": rows[:, :-1], "y": rows[:, -1], "weight": weight, "scale": scale}
