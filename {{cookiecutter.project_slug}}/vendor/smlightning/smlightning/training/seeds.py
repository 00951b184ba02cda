"""What is random in a step is a function of (seed, step, rank), not of the steps before it; what is
random while a batch is fetched, one of (seed, epoch, row): data/draws.py.

A run that is resumed in the middle of an epoch draws what it would have drawn.

A stream has no rows. What it draws when its iterator is made is the same on every rank, as streams
need that shuffle and then take each rank's part; and so is what it draws for its first batches, so
that ranks which are given the same samples show it (training/rank_checks.py), however they augment
them.
"""

import random
from collections.abc import Callable
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
    """Seeds what is drawn in a step, dropout, say; and has loaders draw as data/draws.py says.

    Before a batch is trained on, torch's, numpy's and Python's generators are seeded; and before
    it is fetched, for streams. A step is a batch of a rank: each that is accumulated has numbers of
    its own.
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
        orders = [stream.checksum(self.batches) for stream in self.streams]
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
        self._refuse_overfitting_of_batches(trainer, loader)
        if stateful.keeps_state(loader):
            return process(self._with_state(trainer, loader, start))
        rank, training = trainer.global_rank, trainer.training
        return process(draws.exact_loader(loader, start, self.seed, rank, training))

    def _with_state(
        self, trainer: pl.Trainer, loader: Any, start: Callable[[], draws.Start]
    ) -> Any:
        """A training's loader that keeps a state of its own goes on from the checkpoint's."""
        if not trainer.training:
            return loader
        number, state = self.prepared_with_state, None
        self.prepared_with_state += 1
        if self.resumed is not None and not self.prepared_before:
            stateful.check_states(self.loader_states, loader, number, trainer.world_size)
            state = self.loader_states[trainer.global_rank]["states"][number]
        return stateful.StatefulLoader(loader, start, state, self.seed, trainer.global_rank)

    def _refuse_overfitting_of_batches(self, trainer: pl.Trainer, loader: Any) -> None:
        """Lightning has given each of a training's loaders a sampler of single rows by now."""
        overfit = getattr(trainer, "overfit_batches", 0)
        whole = isinstance(loader, DataLoader) and loader.batch_size is None
        if overfit and whole and isinstance(loader.sampler, SequentialSampler):
            raise UserError(
                f"overfit_batches={overfit} takes the loader's sampler away, which "
                "gives whole batches",
                "use limit_train_batches, with --seed for the same batches in each run",
            )

    def _start(self, trainer: pl.Trainer, number: int) -> draws.Start:
        """Where the training's loader of this number begins."""
        then = self.resumed
        if then is None or then["epoch"] != self.epoch:
            return draws.Start(self.epoch)
        batches = then["batches"]
        if trainer.accumulate_grad_batches != then["accumulate"]:
            batches = ceil(batches / then["accumulate"]) * trainer.accumulate_grad_batches
        orders = then["orders"]
        checksum = orders[number] if number < len(orders) else None
        return draws.Start(self.epoch, batches, checksum)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A stream may draw when its iterator is made: next, for the first epoch."""
        self._seed_fetching(trainer, -1 - self.epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Within an epoch a batch is fetched next; at its start an iterator is made next."""
        self.accumulate = trainer.accumulate_grad_batches
        self.batches = loop.batches_of_epoch(trainer)
        self.streams = draws.index_streams(trainer.train_dataloader)
        if self.resumed is not None:
            stateful.check_count(self.loader_states, self.prepared_with_state)
        self.prepared = self.prepared_with_state = 0
        self.prepared_before = True
        if self.batches > 0:
            self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The loaders may have been made anew."""
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
        """Its loaders drew in between."""
        self._seed_fetching(trainer, loop.batches_trained(trainer))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_last_batch:  # max_steps ends training within the epoch
            return
        self.epoch = trainer.current_epoch + 1  # for the checkpoint that is made now
        self.batches = 0
        self._seed_fetching(trainer, -1 - self.epoch)

    def _seed_fetching(self, trainer: pl.Trainer, index: int) -> None:
        """For the batch of this number in the run; or, where it is negative, for an iterator."""
        rank = trainer.global_rank if index >= draws.ALIKE else 0
        number = (self._number(rank, index) + 32_768) % 2**63  # no step's of any rank
        _seed_generators(number)

    def _number(self, rank: int, index: int) -> int:
        return ((self.seed * 1_000_003 + index) * 65_537 + rank) % 2**63


def _seed_generators(number: int) -> None:
    torch.default_generator.manual_seed(number)
    random.seed(number % 2**32)  # a longer number takes longer
    np.random.seed(number % 2**32)
