"""Random numbers of a step and of hooks as functions of numbers."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from smlightning.data import rng
from smlightning.parts import generators
from smlightning.training import loop

# Loaders seed the generators that they use, and samplers remember theirs.
OF_DATA = (Dataset, DataLoader, Sampler, pl.LightningDataModule)


class StepSeed(pl.Callback):
    """Seeds torch's, numpy's and Python's generators, and those in the model and in callbacks.

    A step is a batch of a rank: each accumulated batch has its own numbers, of (seed, step, rank).
    Hooks that transfer the batch to its device come before the step, and have other numbers of
    these. Hooks of an epoch's start have those of (seed, epoch), equal on all ranks, and a
    validation those of (seed, step, rank).
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.own: list[Any] = []  # generators of model and callbacks

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        every: Any = trainer
        self.own = generators([pl_module, *every.callbacks], outside=OF_DATA)
        plugin: Any = trainer.precision_plugin
        convert = plugin.convert_input

        def seeded(batch: Any) -> Any:
            """Lightning calls it first for each batch, and no hook of a callback in time."""
            if trainer.training:
                self._seed(trainer, rng.TRANSFER, loop.batches_trained(trainer))
            return convert(batch)

        plugin.convert_input = seeded

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        vars(trainer.precision_plugin).pop("convert_input", None)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seed(trainer, rng.EPOCH, trainer.current_epoch, rank=0)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seed(trainer, rng.VALIDATION, loop.batches_trained(trainer))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._seed(trainer, rng.STEP, loop.batches_trained(trainer) - 1)

    def _seed(self, trainer: pl.Trainer, use: int, number: int, rank: int | None = None) -> None:
        rank = trainer.global_rank if rank is None else rank
        mixed = rng.mix(use, self.seed, number, rank)
        rng.seed_generators(mixed, self.own)
        if trainer.strategy.root_device.type == "cuda":
            # torch.manual_seed takes up to 1 ms for kinds of device not in use
            torch.cuda.manual_seed(mixed >> 1)
