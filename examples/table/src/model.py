"""The model: numbers and mean embeddings of words, through two layers; a number or a class."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F

from options import Options
from smlightning import pretrained
from smlightning.training.metrics import WeightedMean
from smlightning.training.optimizers import adamw_with_cosine
from table import Columns


class Network(nn.Module):
    """(B, 2 × numbers) and (B, texts, words) → (B, outputs): classes, or one number."""

    def __init__(self, columns: Columns, hidden: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(columns.buckets + 1, 16, mode="mean", padding_idx=0)
        width = 2 * len(columns.numbers) + 16 * len(columns.texts)
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, len(columns.labels) or 1),
        )

    def forward(self, numbers: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        means = self.embed(words.flatten(0, 1)).view(len(words), -1)
        return self.layers(torch.cat([numbers, means], 1))


class Model(pl.LightningModule):
    """Squared error of a number, or cross-entropy of a class; the error over all ranks."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        self.mean_loss, self.mean_error = WeightedMean(), WeightedMean()

    def configure_model(self) -> None:
        """Build the network: the columns are known only now, after `Data.setup`."""
        if not hasattr(self, "net"):
            self.columns: Columns = self.trainer.datamodule.columns  # type: ignore[attr-defined]
            self.net = Network(self.columns, self.options.hidden)

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.net(*batch[:2])

    def losses(self, found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(B,) of each row."""
        if self.columns.labels:
            return F.cross_entropy(found, targets, reduction="none")
        return F.mse_loss(found[:, 0], targets, reduction="none")

    def errors(self, found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(B,) absolute error in the target's unit, or 1 for a wrong class."""
        if self.columns.labels:
            return (found.argmax(1) != targets).float()
        return (found[:, 0] - targets).abs() * self.columns.scale[1]

    def training_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.losses(self(batch), batch[2]).mean()

    def validation_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> None:
        found, weights = self(batch), torch.ones(len(batch[2]), device=self.device)
        self.mean_loss.update(self.losses(found, batch[2]), weights)
        self.mean_error.update(self.errors(found, batch[2]), weights)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")

    def _log(self, split: str) -> None:
        means = {"loss": self.mean_loss, "error": self.mean_error}
        for name, mean in means.items():
            self.log(f"{split}/{name}", mean.compute().float())  # equal on every rank
            mean.reset()

    def configure_optimizers(self) -> Any:
        chosen = self.options
        return adamw_with_cosine(self.trainer, self.net, chosen.lr, chosen.weight_decay, 0.06)

    def save(self, directory: Path) -> None:
        """Write the weights, and the columns with the statistics of the training rows."""
        config = {"hidden": self.options.hidden, "columns": asdict(self.columns)}
        pretrained.save_own(self.net, config, directory)


def load(directory: Path) -> tuple[Network, Columns]:
    """A saved network in evaluation mode, and its columns.

    Raises:
        UserError: there is no model, or :meth:`Model.save` did not write it.
    """
    with pretrained.model_errors(directory):
        config = pretrained.saved_config(directory)
        columns = Columns(**config["columns"])
        net = Network(columns, config["hidden"])
        pretrained.load_own(net, directory)
    return net.eval(), columns
