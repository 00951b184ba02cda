"""gluonts: its feed-forward network on 16 noisy waves, in the batches of its own estimator."""

from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from gluonts.dataset.common import ListDataset
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator
from gluonts.torch.model.simple_feedforward.lightning_module import (
    SimpleFeedForwardLightningModule,
)

SIZES: dict[str, Any] = {"prediction_length": 4, "context_length": 8, "hidden_dimensions": [8]}


class Network(SimpleFeedForwardLightningModule):
    def __init__(self) -> None:
        super().__init__({**SIZES})

    def test_step(self, batch: Any, batch_idx: int) -> None:
        inputs = {name: batch[name] for name in self.inputs}
        future = {name: batch[name] for name in ("future_target", "future_observed_values")}
        self.log("test_loss", self.model.loss(**inputs, **future).mean())


class Rows(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        more = {"batch_size": batch_size, "num_batches_per_epoch": 6}
        self.estimator = SimpleFeedForwardEstimator(**SIZES, **more)

    def train_dataloader(self) -> Iterable[Any]:
        return self.estimator.create_training_data_loader(self._waves(0), None)

    def val_dataloader(self) -> Iterable[Any]:
        return self.estimator.create_validation_data_loader(self._waves(1), None)

    def test_dataloader(self) -> Iterable[Any]:
        return self.estimator.create_validation_data_loader(self._waves(2), None)

    def _waves(self, seed: int) -> Any:
        ranks = slice(self.trainer.global_rank, None, self.trainer.world_size)
        noise = np.random.default_rng(seed).normal(0, 0.1, (16, 40))[ranks]
        target = np.sin(np.arange(40) / 3) + noise
        waves = [{"target": row, "start": "2020-01-01"} for row in target]
        transformed = self.estimator.create_transformation()
        return transformed.apply(ListDataset(waves, freq="D"), is_train=True)


def answer(network: Network) -> list[float]:
    arguments, loc, scale = network(torch.ones(1, 8))
    return [*arguments[0].flatten().tolist(), loc.item(), scale.item()]
