"""What is random in a step is a function of (seed, step, rank), not of the steps before it.

A run that is resumed in the middle of an epoch draws what it would have drawn.
"""

import random
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from smlightning.training import loop


class StepSeed(pl.Callback):
    """Seeds what is drawn in a step: dropout, say, and augmentation in this process.

    Before each batch is fetched, torch's, numpy's and Python's generators are seeded; before it is
    trained on, torch's once more. A step is a batch of a rank: each that is accumulated has numbers
    of its own.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """An ordinary loader that shuffles draws its order when its iterator is made: next, for the
        first epoch.
        """
        self._seed_fetching(trainer, -1 - self.epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Within an epoch a batch is fetched next; at its start the loader draws its order next."""
        if loop.batches_of_epoch(trainer) > 0:
            self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        number = self._number(trainer, loop.batches_trained(trainer) - 1)
        torch.default_generator.manual_seed(number)
        if trainer.strategy.root_device.type == "cuda":
            # torch.manual_seed takes up to 1 ms for kinds of device not in use
            torch.cuda.manual_seed(number)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self._seed_fetching(trainer, loop.batches_trained(trainer))

    on_validation_end = on_train_batch_end  # its loaders drew in between

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epoch = trainer.current_epoch + 1  # for the checkpoint that is made now
        self._seed_fetching(trainer, -1 - self.epoch)

    def _seed_fetching(self, trainer: pl.Trainer, index: int) -> None:
        number = (self._number(trainer, index) + 32_768) % 2**63  # no step's of any rank
        torch.default_generator.manual_seed(number)
        random.seed(number % 2**32)  # a longer number takes longer
        np.random.seed(number % 2**32)

    def _number(self, trainer: pl.Trainer, index: int) -> int:
        return ((self.seed * 1_000_003 + index) * 65_537 + trainer.global_rank) % 2**63
