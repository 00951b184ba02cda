"""Training loaders that continue within an epoch; their states in a checkpoint."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader, SequentialSampler

from smlightning.data import rng, stateful
from smlightning.errors import UserError


class ResumableLoaders:
    """Gives each loader exact random numbers, and each training loader its place in the epoch.

    Attributes:
        resumed: the state in the checkpoint that this run resumes from, by StepSeed.
        saved_states: in that checkpoint, the states of each rank's loaders.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.resumed: dict[str, Any] | None = None
        self.saved_states: list[dict[str, Any]] = []
        self.streams: list[rng.IndexStream] = []  # of the training loaders
        self.prepared = 0  # training loaders since the epoch began
        self.prepared_with_state = 0  # those of them that have a state of their own
        self.has_begun = False  # the resumed run has made its loaders and trains

    def prepare(self, trainer: pl.Trainer, loader: Any, epoch: Callable[[], int]) -> Any:
        """The loader to iterate instead.

        Args:
            epoch: the epoch at the time when the loader is iterated.
        """
        start = partial(self._start, trainer, self.prepared, epoch)
        rank, training = trainer.global_rank, trainer.training
        self.prepared += training
        check_overfitting(trainer, loader)
        if not stateful.keeps_state(loader):
            return rng.exact_loader(loader, start, self.seed, rank, training)
        if not training:
            return loader
        number, state = self.prepared_with_state, None
        self.prepared_with_state += 1
        if self.resumed is not None and not self.has_begun:
            stateful.check_states(self.saved_states, loader, number, trainer.world_size)
            state = self.saved_states[rank]["states"][number]
        return stateful.StatefulLoader(loader, start, state, self.seed, rank)

    def _start(self, trainer: pl.Trainer, number: int, epoch: Callable[[], int]) -> rng.Start:
        """The start of the training loader of this number."""
        then, now = self.resumed, epoch()
        if then is None or then["epoch"] != now:
            return rng.Start(now)
        batches = then["batches"]
        if trainer.accumulate_grad_batches != then["accumulate"]:
            batches = ceil(batches / then["accumulate"]) * trainer.accumulate_grad_batches
        orders = then["orders"]
        checksum = orders[number] if number < len(orders) else None
        return rng.Start(now, batches, checksum)

    def begin_training(self, trainer: pl.Trainer) -> None:
        """All training loaders are prepared: reject a resumed run with others than before."""
        if self.resumed is not None:
            stateful.check_count(self.saved_states, self.prepared_with_state)
        self.prepared_with_state = 0
        self.has_begun = True
        self.begin_epoch(trainer)

    def begin_epoch(self, trainer: pl.Trainer) -> None:
        """The loaders may be new."""
        self.streams = rng.index_streams(trainer.train_dataloader)
        self.prepared = 0

    def orders(self, batches: int) -> list[int]:
        """A checksum of the order of each training loader's rows, as far as ``batches``."""
        return [stream.checksum(batches) for stream in self.streams]

    def states_of_ranks(self, trainer: pl.Trainer, batches: int) -> list[dict[str, Any]]:
        """The states of each rank's loaders after ``batches``, on rank 0. Collective."""
        loaders = stateful.stateful_loaders(trainer.train_dataloader)
        return stateful.states_of_ranks(loaders, batches)


def check_overfitting(trainer: pl.Trainer, loader: Any) -> None:
    """Reject overfit_batches for a loader whose sampler gave whole batches.

    Lightning has replaced that sampler by one of single rows.
    """
    overfit = getattr(trainer, "overfit_batches", 0)
    whole = isinstance(loader, DataLoader) and loader.batch_size is None
    if overfit and whole and isinstance(loader.sampler, SequentialSampler):
        raise UserError(
            f"overfit_batches={overfit} replaces the sampler, and batches.loader needs its own",
            "use limit_train_batches, with --seed for the same batches in each run",
        )
