"""Random numbers in a step depend only on (seed, step, rank); those while a batch is fetched, on
(seed, epoch, row): data/draws.py. So a run that resumes within an epoch has the same numbers.

A stream has no rows. Its random numbers are the same on every rank when its iterator is made, since
streams shuffle all rows and then take each rank's part. They are also the same for its first
batches, so that ranks with the same samples have equal batches (training/rank_checks.py), however
they augment them.
"""

import random
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, SequentialSampler

from smlightning.data import draws, stateful
from smlightning.errors import UserError
from smlightning.training import loop

LOADERS = "loaders"  # the key of a checkpoint


class StepSeed(pl.Callback):
    """Seeds torch's, numpy's and Python's generators before each training batch; prepares loaders.

    For streams it also seeds them before a batch is fetched. A step is a batch of a rank: each
    accumulated batch has its own numbers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.batches = 0  # of a rank, trained on in this epoch
        self.accumulate = 1
        self.streams: list[draws.IndexStream] = []  # of the training's loaders
        self.prepared = 0  # loaders of the training since its epoch began
        self.resumed: dict[str, Any] | None = None  # the state of a checkpoint
        self.loader_states: list[dict[str, Any]] = []  # that it has of each rank's loaders
        self.prepared_with_state = 0  # of the loaders, those that keep a state of their own
        self.prepared_before = False  # whether training has begun with its loaders

    def state_dict(self) -> dict[str, Any]:
        orders = [asdict(stream.order(self.batches)) for stream in self.streams]
        place = {"epoch": self.epoch, "batches": self.batches, "accumulate": self.accumulate}
        return {**place, "orders": orders}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.resumed = state_dict
        self.epoch = state_dict["epoch"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the states of all ranks' loaders. Collective, as saving is."""
        loaders = stateful.stateful_loaders(trainer.train_dataloader)
        checkpoint[LOADERS] = stateful.states_of_ranks(loaders, self.batches)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.loader_states = checkpoint.get(LOADERS, [])

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Prepare each loader after Lightning has divided it among the ranks.

        ``Strategy.process_dataloader`` is what Lightning calls with it, before it is iterated.
        """
        process: Any = trainer.strategy.process_dataloader
        if getattr(process, "func", None) != self._process:
            strategy: Any = trainer.strategy
            strategy.process_dataloader = partial(self._process, trainer, process)

    def _process(self, trainer: pl.Trainer, process: Any, loader: object) -> object:
        start = partial(self._start, trainer, self.prepared)
        if trainer.training:
            self.prepared += 1
        self._check_overfitting(trainer, loader)
        if stateful.keeps_state(loader):
            return process(self._with_state(trainer, loader, start))
        rank, training = trainer.global_rank, trainer.training
        return process(draws.exact_loader(loader, start, self.seed, rank, training))

    def _with_state(
        self, trainer: pl.Trainer, loader: Any, start: Callable[[], draws.Start]
    ) -> Any:
        """A training loader that has a state of its own; it continues from the checkpoint's."""
        if not trainer.training:
            return loader
        number, state = self.prepared_with_state, None
        self.prepared_with_state += 1
        if self.resumed is not None and not self.prepared_before:
            stateful.refuse_another_place(self.loader_states, loader, number, trainer.world_size)
            state = self.loader_states[trainer.global_rank]["states"][number]
        return stateful.StatefulLoader(loader, start, state, self.seed, trainer.global_rank)

    def _check_overfitting(self, trainer: pl.Trainer, loader: Any) -> None:
        """Reject overfit_batches for a loader whose sampler gave whole batches."""
        overfit = getattr(trainer, "overfit_batches", 0)
        whole = isinstance(loader, DataLoader) and loader.batch_size is None
        if overfit and whole and isinstance(loader.sampler, SequentialSampler):
            raise UserError(
                f"overfit_batches={overfit} replaces the loader's sampler, which gives whole "
                "batches",
                "use limit_train_batches, with --seed for the same batches in each run",
            )

    def _start(self, trainer: pl.Trainer, number: int) -> draws.Start:
        """The start of the training loader of this number."""
        then = self.resumed
        if then is None or then["epoch"] != self.epoch:
            return draws.Start(self.epoch)
        batches = then["batches"]
        if trainer.accumulate_grad_batches != then["accumulate"]:
            batches = ceil(batches / then["accumulate"]) * trainer.accumulate_grad_batches
        orders = then["orders"]
        order = draws.Order(**orders[number]) if number < len(orders) else None
        return draws.Start(self.epoch, batches, order)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The iterator of the first epoch is made next, and may use random numbers."""
        self._seed_fetching(trainer, -1 - self.epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Within an epoch, a batch is fetched next; at its start, an iterator is made next."""
        self.accumulate = trainer.accumulate_grad_batches
        self.batches = loop.batches_of_epoch(trainer)
        self.streams = draws.index_streams(trainer.train_dataloader)
        if self.resumed is not None:
            stateful.refuse_other_loaders(self.loader_states, self.prepared_with_state)
        self.prepared = self.prepared_with_state = 0
        self.prepared_before = True
        if self.batches > 0:
            self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The loaders may be new."""
        self.streams = draws.index_streams(trainer.train_dataloader)
        self.prepared = 0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        number = self._number(trainer.global_rank, loop.batches_trained(trainer) - 1)
        _seed_generators(number)
        if trainer.strategy.root_device.type == "cuda":
            # torch.manual_seed takes up to 1 ms for kinds of device not in use
            torch.cuda.manual_seed(number)

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
        rank = trainer.global_rank if index >= draws.ALIKE else 0
        number = (self._number(rank, index) + 32_768) % 2**63  # no step's of any rank
        _seed_generators(number)

    def _number(self, rank: int, index: int) -> int:
        return ((self.seed * 1_000_003 + index) * 65_537 + rank) % 2**63


def _seed_generators(number: int) -> None:
    torch.default_generator.manual_seed(number)
    random.seed(number % 2**32)  # a longer number takes longer
    np.random.seed(number % 2**32)
