"""A multilayer perceptron for one number."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection

from options import Options
from smlightning.cluster import collectives
from smlightning.errors import UserError


class Model(pl.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = Options(**options)
        sync: Any = {"dist_sync_fn": collectives.sum_over_ranks}
        errors = MetricCollection(
            {"rmse": MeanSquaredError(squared=False, **sync), "mae": MeanAbsoluteError(**sync)}
        )
        self.val_errors, self.test_errors = errors.clone("val/"), errors.clone("test/")

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.net = build(self.trainer.datamodule.features, self.options.width)  # type: ignore[attr-defined]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        errors = (self.net(batch["x"]).squeeze(1) - batch["y"]) ** 2
        return (errors * batch["weight"]).sum() * batch["scale"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(self.val_errors, batch)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(self.test_errors, batch)

    def _evaluate(self, errors: MetricCollection, batch: dict[str, Any]) -> None:
        real = batch["weight"] > 0
        errors.update(self.net(batch["x"]).squeeze(1)[real], batch["y"][real])
        self.log_dict(errors, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.options.lr)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        saved = {
            "features": self.net[0].in_features,
            "width": self.options.width,
            "weights": self.net.state_dict(),
        }
        torch.save(saved, directory / "model.pt")

    def draw(self, directory: Path) -> None:
        pass


def build(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))


def load(directory: Path) -> tuple[nn.Module]:
    if not (directory / "model.pt").is_file():
        raise UserError(
            f"{directory} holds no model.pt",
            "train first, or name the model's folder with --model_dir",
        )
    saved = torch.load(directory / "model.pt", weights_only=True)
    net = build(saved["features"], saved["width"])
    net.load_state_dict(saved["weights"])
    return (net.eval(),)
