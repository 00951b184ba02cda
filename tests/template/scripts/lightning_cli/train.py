"""Lightning's command line: config.yaml, and options such as --model.lr 0.01."""

import json
import os
import sys
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.cli import LightningCLI
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Points(LightningDataModule):
    def __init__(self, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        x = torch.randn(96, 1, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, 2 * x), self.batch_size, shuffle=True)


class Line(LightningModule):
    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr, self.net = lr, nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def main() -> None:
    folder = Path(os.environ["SM_MODEL_DIR"])
    defaults = {
        "accelerator": "gpu",
        "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
        "num_nodes": len(json.loads(os.environ["SM_HOSTS"])),
        "strategy": "ddp",
        "default_root_dir": folder.parent / "checkpoints",
    }
    words = ["fit", "--config", "config.yaml", *sys.argv[1:]]
    cli = LightningCLI(Line, Points, trainer_defaults=defaults, args=words)
    cli.trainer.save_checkpoint(folder / "line.ckpt")


if __name__ == "__main__":
    main()
