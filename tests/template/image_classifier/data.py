"""Greyscale images and their classes from two npy files, in ordinary DataLoaders."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, random_split

from options import Options
from smlightning.errors import UserError


class Images(Dataset):
    """Items are an image (1, H, W) of float32 from 0 to 1, and its class."""

    def __init__(self, folder: Path) -> None:
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(self.images[i], dtype=torch.float32)[None] / 255, int(self.labels[i])


class Noisy(Dataset):
    """The same with a little noise, which is drawn anew in each epoch."""

    def __init__(self, images: Dataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)  # type: ignore[arg-type]

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image, label = self.images[i]
        return image + 0.02 * torch.randn(image.shape), label


class Data(pl.LightningDataModule):
    """Batches are a list of images (B, 1, H, W) and classes (B,)."""

    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        super().__init__()
        self.prepare_data_per_node = True
        self.options = Options(dataset=dataset, **options)

    def setup(self, stage: str | None = None) -> None:
        name = self.options.dataset
        folder = Path(os.environ.get("SM_CHANNEL_TRAINING", name) if name == "training" else name)
        if not (folder / "images.npy").is_file():
            raise UserError(
                f"--dataset {name}: {folder} holds no images.npy",
                "name a folder with images and labels",
            )
        images = Images(folder)
        generator = torch.Generator().manual_seed(self.options.seed)
        self.train, self.val, self.test = random_split(images, [0.7, 0.15, 0.15], generator)
        self.classes = int(images.labels.max()) + 1

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Noisy(self.train), self.options.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, self.options.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.test, self.options.batch_size)
