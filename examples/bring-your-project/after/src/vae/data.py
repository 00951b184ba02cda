"""Windows of a vibration signal: normal ones to train on, normal and faulty ones to test."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset, random_split


class Augmented(Dataset):
    """Shifts each window by a random number of samples, and changes its loudness."""

    def __init__(self, windows: Any) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.windows[index]
        x = torch.roll(x, np.random.randint(len(x)))
        return x * np.random.uniform(0.9, 1.1), y


class WindowData(L.LightningDataModule):
    """Splits of the normal windows 8:1:1; all faulty windows are in the test set.

    Args:
        path: a file of numpy with the arrays ``normal`` and ``faulty``, each (N, length).
    """

    def __init__(
        self, path: str, batch_size: int, num_workers: int = 0, augment: bool = True
    ) -> None:
        super().__init__()
        self.path, self.batch_size, self.num_workers = Path(path), batch_size, num_workers
        self.augment = augment

    def setup(self, stage: str) -> None:
        with np.load(self.path) as arrays:
            normal, faulty = torch.tensor(arrays["normal"]), torch.tensor(arrays["faulty"])
        good = TensorDataset(normal, torch.zeros(len(normal)))
        bad = TensorDataset(faulty, torch.ones(len(faulty)))
        generator = torch.Generator().manual_seed(42)
        train, self.val, held_out = random_split(good, [0.8, 0.1, 0.1], generator)
        self.train = Augmented(train) if self.augment else train
        self.test: Dataset = ConcatDataset([held_out, bad])

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader:
        return self._loader(self.test)

    def _loader(self, data: Dataset, shuffle: bool = False, drop_last: bool = False) -> DataLoader:
        return DataLoader(
            data,
            self.batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )
