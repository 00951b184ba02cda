"""A small convolutional network with BatchNorm."""

import json
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassF1Score

from options import Options
from smlightning.cluster import collectives
from smlightning.errors import UserError


class Model(pl.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.classes = self.trainer.datamodule.classes  # type: ignore[attr-defined]
            self.net = build(self.options.channels, self.classes)
            self.f1 = MulticlassF1Score(self.classes, dist_sync_fn=collectives.sum_over_ranks)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        logits = self.net(images)
        self.f1.update(logits, labels)
        self.log(f"{split}/loss", F.cross_entropy(logits, labels), sync_dist=True)
        self.log(f"{split}/f1", self.f1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.options.lr, momentum=self.options.momentum
        )
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self.net.state_dict(), directory / "model.safetensors")
        config = {"channels": self.options.channels, "classes": self.classes}
        (directory / "config.json").write_text(json.dumps(config))

    def draw(self, directory: Path) -> None:
        pass


def build(channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, classes),
    )


def load(directory: Path) -> tuple[nn.Module]:
    if not (directory / "config.json").is_file():
        raise UserError(
            f"{directory} holds no config.json",
            "train first, or name the model's folder with --model_dir",
        )
    net = build(**json.loads((directory / "config.json").read_text()))
    net.load_state_dict(load_file(directory / "model.safetensors"))
    return (net.eval(),)
