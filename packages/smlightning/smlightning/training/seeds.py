"""Random numbers in a step depend only on (seed, step, rank); those while a batch is fetched, on
(seed, epoch, row): data/rng.py. So a run that resumes within an epoch has the same numbers.

A stream has no rows. Its random numbers are the same on every rank when its iterator is made, since
streams shuffle all rows and then take each rank's part. They are also the same for its first
batches, so that ranks with the same samples have equal batches (training/rank_checks.py), however
they augment them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch

from smlightning.data import rng
from smlightning.training import loop
from smlightning.training.loaders import ResumableLoaders

LOADERS = "loaders"  # the key of a checkpoint


class StepSeed(pl.Callback):
    """Seeds torch's, numpy's and Python's generators before each training batch.

    For streams it also seeds them before a batch is fetched. A step is a batch of a rank: each
    accumulated batch has its own numbers. Lightning's loaders go through `ResumableLoaders`.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.batches = 0  # that a rank has trained on in this epoch
        self.accumulate = 1
        self.loaders = ResumableLoaders(seed)

    def state_dict(self) -> dict[str, Any]:
        place = {"epoch": self.epoch, "batches": self.batches, "accumulate": self.accumulate}
        return {**place, "orders": self.loaders.orders(self.batches)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaders.resumed = state_dict
        self.epoch = state_dict["epoch"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the states of all ranks' loaders. Collective, as saving is."""
        checkpoint[LOADERS] = self.loaders.states_of_ranks(trainer, self.batches)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.loaders.saved_states = checkpoint.get(LOADERS, [])

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Prepare each loader after Lightning has divided it among the ranks.

        Lightning calls ``Strategy.process_dataloader`` with a loader before it is iterated.
        """
        process: Any = trainer.strategy.process_dataloader
        if getattr(process, "func", None) != self._process:
            strategy: Any = trainer.strategy
            strategy.process_dataloader = partial(self._process, trainer, process)

    def _process(self, trainer: pl.Trainer, process: Callable[[Any], Any], loader: object) -> Any:
        return process(self.loaders.prepare(trainer, loader, lambda: self.epoch))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The iterator of the first epoch is made next, and may use random numbers."""
        self._seed_fetching(trainer, -1 - self.epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Within an epoch, a batch is fetched next; at its start, an iterator is made next."""
        self.accumulate = trainer.accumulate_grad_batches
        self.batches = loop.batches_of_epoch(trainer)
        self.loaders.begin_training(trainer)
        if self.batches > 0:
            self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.loaders.begin_epoch(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = loop.batches_trained(trainer) - 1
        number = rng.mix(rng.STEP, self.seed, step, trainer.global_rank)
        rng.seed_generators(number)
        if trainer.strategy.root_device.type == "cuda":
            # torch.manual_seed takes up to 1 ms for kinds of device not in use
            torch.cuda.manual_seed(number >> 1)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self.batches = loop.batches_of_epoch(trainer)
        self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validation loaders have used the generators."""
        self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_last_batch:  # max_steps ends training within the epoch
            return
        self.epoch = trainer.current_epoch + 1  # for the checkpoint that is made now
        self.batches = 0
        self._seed_fetching(trainer, -1 - self.epoch)

    def _seed_fetching(self, trainer: pl.Trainer, index: int) -> None:
        """Seed for the batch of this number in the run or, if it is negative, for an iterator."""
        rank = trainer.global_rank if index >= rng.ALIKE else 0
        rng.seed_generators(rng.mix(rng.FETCH, self.seed, index, rank))
