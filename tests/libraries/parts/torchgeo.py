"""torchgeo: its classification task with a small ResNet, on noisy stripes of four bands."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader
from torchgeo.datasets import NonGeoDataset
from torchgeo.trainers import ClassificationTask


class Network(ClassificationTask):
    def __init__(self) -> None:
        super().__init__(model="test_resnet", in_channels=4, num_classes=2)


class Stripes(NonGeoDataset):
    def __init__(self, seed: int, size: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.noise = torch.randn(size, 4, 32, 32, generator=generator)

    def __len__(self) -> int:
        return len(self.noise)

    def __getitem__(self, row: int) -> dict[str, Any]:
        wave = torch.arange(32).div(4, rounding_mode="floor") % 2
        stripes = wave[:, None] if row % 2 else wave[None]
        return {"image": self.noise[row] + stripes, "label": torch.tensor(row % 2)}


class Rows(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Stripes(0, 48), self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Stripes(1, 16), self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(Stripes(2, 16), self.batch_size)


def answer(network: Network) -> list[float]:
    return network(Stripes(2, 1)[0]["image"][None])[0].tolist()
