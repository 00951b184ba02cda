"""Averages of the weights, a warm-up of the KL term, and a file of reconstructions."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback


class EMA(Callback):
    """Keeps an exponential moving average of the weights, and validates and tests with it."""

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = decay
        self.average: dict[str, torch.Tensor] = {}
        self.trained: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        average = self.average or pl_module.state_dict()
        self.average = {k: v.clone().to(pl_module.device) for k, v in average.items()}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *batch: Any
    ) -> None:
        with torch.no_grad():
            for name, value in pl_module.state_dict().items():
                self.average[name].lerp_(value, 1 - self.decay)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.average:
            self.trained = {k: v.clone() for k, v in pl_module.state_dict().items()}
            pl_module.load_state_dict(self.average)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.trained:
            pl_module.load_state_dict(self.trained)
            self.trained = {}

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["ema"] = self.average

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.average = checkpoint["ema"]


class KLWarmup(Callback):
    """Raises ``beta`` of the model linearly during the first steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *batch: Any) -> None:
        share = min(1.0, trainer.global_step / self.steps)
        pl_module.beta = pl_module.hparams.beta * share


class Reconstructions(Callback):
    """Writes the first windows of validation and their reconstructions after each validation."""

    def __init__(self, folder: str | Path, count: int = 8) -> None:
        self.folder, self.count = Path(folder), count

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch_idx or trainer.sanity_checking or not trainer.is_global_zero:
            return
        x = batch[0][: self.count]
        mean, _ = pl_module.encoder(x).chunk(2, -1)
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            self.folder / f"{trainer.current_epoch:03}.npz",
            windows=x.cpu(),
            reconstructed=pl_module.decoder(mean).cpu(),
        )
