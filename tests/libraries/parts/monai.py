"""monai: its U-Net and Dice loss in a module of `lightning`, on discs, with random flips."""

from typing import Any

import lightning.pytorch as pl
import torch
from monai.data import CacheDataset, DataLoader
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Compose, RandFlipd, RandGaussianNoised, ScaleIntensityd

KEYS = ["image", "label"]
STEPS = Compose([
    ScaleIntensityd("image"),
    RandFlipd(KEYS, prob=0.5, spatial_axis=0),
    RandGaussianNoised("image", prob=0.5),
])  # fmt: skip


class Network(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = UNet(2, 1, 1, channels=(4, 8), strides=(2,), dropout=0.1)
        self.loss = DiceLoss(sigmoid=True)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(self.net(batch["image"]), batch["label"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Rows(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.train = CacheDataset(discs(0, 48), STEPS, progress=False)
        self.val = CacheDataset(discs(1, 16), STEPS.transforms[0], progress=False)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, batch_size=self.batch_size)

    test_dataloader = val_dataloader


def discs(seed: int, size: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    found = []
    for _ in range(size):
        y, x = torch.randint(4, 12, (2,), generator=generator)
        label = (((row - y) ** 2 + (column - x) ** 2) < 12).float()[None]
        image = label + torch.randn(1, 16, 16, generator=generator)
        found.append({"image": image, "label": label})
    return found


def answer(network: Network) -> list[float]:
    return network.net(discs(2, 1)[0]["image"][None]).flatten()[:8].tolist()
