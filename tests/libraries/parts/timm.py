"""timm: its smallest ResNet in a module of `lightning`, on noisy stripes."""

from typing import Any

import lightning as L
import lightning.pytorch as pl
import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Network(L.LightningModule):
    def __init__(self, name: str = "test_resnet") -> None:
        super().__init__()
        self.save_hyperparameters("name")
        self.net = timm.create_model(name, pretrained=False, num_classes=2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> Any:
        optimizer = create_optimizer_v2(self.net, opt="adamw", lr=1e-3)
        scheduler = CosineLRScheduler(optimizer, t_initial=3)
        return [optimizer], [{"scheduler": scheduler, "interval": "epoch"}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=self.current_epoch)


class Rows(L.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(stripes(0, 48), self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(stripes(1, 16), self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(stripes(2, 16), self.batch_size)


def stripes(seed: int, size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % 2
    wave = torch.arange(32).div(4, rounding_mode="floor") % 2
    images = torch.where(labels[:, None, None] > 0, wave[:, None], wave[None]).float()
    images = images[:, None] + torch.randn(size, 3, 32, 32, generator=generator)
    return TensorDataset(images, labels)


def answer(network: Network) -> list[float]:
    return network.net(stripes(2, 1).tensors[0])[0].tolist()


__all__ = ["Network", "Rows", "answer", "pl"]
