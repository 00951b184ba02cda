"""Windows of a text file as bytes, in an order that each rank works out for itself."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from options import DataOptions
from smlightning.errors import UserError


class Windows(IterableDataset):
    """Windows of ``length + 1`` bytes, shuffled anew in each epoch; every world-size-th of them
    is this rank's.
    """

    def __init__(
        self, text: np.ndarray, length: int, seed: int | None, trainer: pl.Trainer | None
    ) -> None:
        self.text, self.length, self.seed, self.trainer = text, length, seed, trainer
        self.rank, self.world_size = (
            (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        )
        self.count = (
            (len(text) - 1) // length // self.world_size
        )  # of each rank: all have equally many

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = np.arange(self.count * self.world_size)
        if self.seed is not None:
            epoch = self.trainer.current_epoch if self.trainer else 0
            np.random.default_rng([self.seed, epoch]).shuffle(order)
        for i in order[self.rank :: self.world_size]:
            window = self.text[i * self.length : (i + 1) * self.length + 1]
            yield torch.from_numpy(window.astype(np.int64))


class Data(pl.LightningDataModule):
    """Batches are tensors of bytes, (B, window + 1) int64: each but the first is predicted from
    those before it.
    """

    def __init__(self, dataset: str = DataOptions.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = DataOptions(dataset, **options)

    def setup(self, stage: str | None = None) -> None:
        name = self.options.dataset
        path = Path(os.environ.get("SM_CHANNEL_TRAINING", name) if name == "training" else name)
        files = [*path.glob("*.txt")] if path.is_dir() else [path]
        if len(files) != 1 or not files[0].is_file():
            raise UserError(
                f"--dataset {name}: {path} is not a text file, nor a folder with exactly one",
                "give either",
            )
        text = np.memmap(files[0], dtype=np.uint8, mode="r")
        self.train, self.val, self.test = np.split(text, [len(text) * 8 // 10, len(text) * 9 // 10])

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train, self.options.seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.val, None)

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.test, None)

    def _loader(self, text: np.ndarray, seed: int | None) -> DataLoader:
        return DataLoader(
            Windows(text, self.options.window, seed, self.trainer), self.options.batch_size
        )
