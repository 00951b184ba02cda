"""Fit a line with PyTorch Lightning: python train.py --max_epochs 2

It has the slips of many public scripts, which test_other_scripts.py mends one by one.
"""

import argparse
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Points(LightningDataModule):
    def __init__(self, folder: str, batch_size: int) -> None:
        super().__init__()
        self.path, self.batch_size = Path(folder) / "points.csv", batch_size

    def setup(self, stage: str) -> None:
        rows = [[float(word) for word in line.split(",")] for line in self.path.open()]
        points = torch.tensor(rows)
        self.points = TensorDataset(points[:, :1], points[:, 1:])

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.points, self.batch_size, shuffle=True)


class Line(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr, self.net = lr, nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", default="../data")
    parser.add_argument("--max_epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    trainer = Trainer(
        accelerator="auto",
        devices="auto",
        max_epochs=args.max_epochs,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(args.lr), Points(args.data_dir, args.batch_size))
    trainer.save_checkpoint("line.ckpt")


if __name__ == "__main__":
    main()
