"""A recurrent language model over bytes."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F

from options import ModelOptions
from smlightning.errors import UserError


class ByteGRU(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.predict = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Bytes (B, L) → logits of each one's successor (B, L, 256)."""
        return self.predict(self.recur(self.embed(text))[0])


class Model(pl.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = ModelOptions(**options)
        self.net = ByteGRU(self.options.width)

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(text[:, :-1]).transpose(1, 2), text[:, 1:])

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.log("val/perplexity", self.trainer.callback_metrics["val/loss"].exp(), sync_dist=True)

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("test/perplexity", self.loss(batch).exp(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.options.lr)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"width": self.options.width, "weights": self.net.state_dict()}, directory / "model.pt"
        )

    def draw(self, directory: Path) -> None:
        pass


def load(directory: Path) -> tuple[nn.Module]:
    if not (directory / "model.pt").is_file():
        raise UserError(
            f"{directory} holds no model.pt",
            "train first, or name the model's folder with --model_dir",
        )
    saved = torch.load(directory / "model.pt", weights_only=True)
    net = ByteGRU(saved["width"])
    net.load_state_dict(saved["weights"])
    return (net.eval(),)
