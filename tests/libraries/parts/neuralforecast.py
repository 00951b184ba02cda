"""neuralforecast: its MLP on 24 noisy waves, with its own data module."""

from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from neuralforecast.losses.pytorch import MAE
from neuralforecast.models import MLP
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset, TimeSeriesLoader


class Network(MLP):
    def __init__(self) -> None:
        super().__init__(
            h=4, input_size=8, hidden_size=16, loss=MAE(), batch_size=8, windows_batch_size=32
        )
        self.val_size, self.test_size = 8, 0

    def test_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.validation_step(batch, batch_idx)
        self.log("test_loss", loss, batch_size=len(batch["temporal"]))
        return loss


class Rows(TimeSeriesDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__(waves(), batch_size=batch_size, valid_batch_size=8)

    def test_dataloader(self) -> TimeSeriesLoader:
        return self.val_dataloader()


def waves() -> TimeSeriesDataset:
    draw = np.random.default_rng(0)
    parts = []
    for number in range(48):
        y = np.sin(np.arange(40) / (2 + number % 3)) + draw.normal(0, 0.1, 40)
        days = pd.date_range("2020-01-01", periods=40)
        parts.append(pd.DataFrame({"unique_id": f"{number:02}", "ds": days, "y": y}))
    return TimeSeriesDataset.from_df(pd.concat(parts))[0]


def answer(network: Network) -> list[float]:
    windows = {"insample_y": torch.ones(1, 8, 1), "futr_exog": None, "hist_exog": None}
    return network({**windows, "stat_exog": None, "insample_mask": torch.ones(1, 8)})[0].tolist()


__all__ = ["Network", "Rows", "answer", "pl"]
