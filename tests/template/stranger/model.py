"""A linear model that logs the ordinary Lightning way, averages over ranks included."""

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn


class Model(LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr, self.net = lr, nn.Linear(8, 1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self._loss("train/loss", batch)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self._loss("val/loss", batch)

    def test_step(self, batch: list[Tensor], _: int) -> None:
        self._loss("test/loss", batch)

    def _loss(self, name: str, batch: list[Tensor]) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x).squeeze(-1), y)
        self.log(name, loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)
