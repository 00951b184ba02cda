"""Random numbers of a step as a function of numbers."""

from typing import Any

import pytorch_lightning as pl
import torch

from smlightning.data import rng
from smlightning.training import loop


class StepSeed(pl.Callback):
    """Seeds torch's, numpy's and Python's generators before each training batch.

    A step is a batch of a rank: each accumulated batch has its own numbers, of (seed, step, rank).
    Generators that the model keeps as attributes are seeded, too.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.own: list[Any] = []  # generators of the model

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        kept = [value for module in pl_module.modules() for value in vars(module).values()]
        self.own = [value for value in kept if isinstance(value, rng.GENERATORS)]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = loop.batches_trained(trainer) - 1
        number = rng.mix(rng.STEP, self.seed, step, trainer.global_rank)
        rng.seed_generators(number, self.own)
        if trainer.strategy.root_device.type == "cuda":
            # torch.manual_seed takes up to 1 ms for kinds of device not in use
            torch.cuda.manual_seed(number >> 1)
