"""Training loaders that resume within an epoch; their states in a checkpoint."""

import io
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.utils.data import SequentialSampler

from smlightning import torch_files
from smlightning.cluster import collectives
from smlightning.data.batches import GlobalBatches
from smlightning.data.exact import (
    ExactBatches,
    Stream,
    exact_loader,
    has_rows,
    keeps_state,
    sampler_of,
)
from smlightning.errors import UserError
from smlightning.training import loop

LOADERS = "loaders"  # the key of a checkpoint


class ExactLoaders(pl.Callback):
    """Makes a loader that resumes within an epoch of each loader that your methods return.

    A DataLoader of rows becomes another DataLoader of the same data set, sampler, workers and
    ``collate_fn`` (data/exact.py), whose sampler can start at any batch. Its generators are seeded
    for each row. This is done after Lightning has divided the loader among the ranks, as Lightning
    does it: your loader is not changed. Streams become a `Stream`. `batches.loader` stays as it is.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.batches = 0  # that a rank has trained on in this epoch
        self.accumulate = self.world_size = 1
        self.orders: list[list[int]] = []  # of the batches that were trained on last
        self.samples: list[int] = []  # of each stream, in the first epoch that was trained whole
        self.resumed: dict[str, Any] | None = None
        self.saved: list[dict[str, Any]] = []  # in that checkpoint, each rank's states of streams
        self.prepared = 0  # training loaders since the epoch began
        self.loaders: list[Any] = []  # the training loaders

    # In a checkpoint

    def state_dict(self) -> dict[str, Any]:
        names = ("epoch", "batches", "accumulate", "samples", "world_size")
        state = {name: getattr(self, name) for name in names}
        return {**state, "orders": self._orders() if self.batches else self.orders}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.resumed = state_dict
        self.epoch, self.samples = state_dict["epoch"], state_dict["samples"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the states of all ranks' loaders. Collective, as saving is."""
        checkpoint[LOADERS] = states_of_ranks(self._streams(), self.batches)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.saved = checkpoint.get(LOADERS, [])

    def _orders(self) -> list[list[int]]:
        """For each loader of rows, the batches trained on, and a checksum of their rows."""
        samplers = map(sampler_of, self.loaders)
        exact = [sampler for sampler in samplers if isinstance(sampler, ExactBatches)]
        return [[self.batches, sampler.checksum(self.batches)] for sampler in exact]

    def _streams(self) -> list[Stream]:
        """The streams with a state."""
        streams = [loader for loader in self.loaders if isinstance(loader, Stream)]
        return [stream for stream in streams if keeps_state(stream.loader)]

    # The loaders

    def process_dataloader(self, trainer: pl.Trainer, loader: Any) -> Any:
        """The loader to iterate instead. Called by this package's strategies."""
        check_overfitting(trainer, loader)
        training, rank = trainer.training, trainer.global_rank
        if not has_rows(loader):
            return self._begin(trainer, Stream(loader, self.seed, rank)) if training else loader
        every = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
        made_in = self.epoch - self.epoch % every if every else 0
        first = self.epoch if self.loaders else made_in
        loader = exact_loader(loader, self.seed, rank, training, first)
        return self._begin(trainer, loader) if training else loader

    def _begin(self, trainer: pl.Trainer, loader: Any) -> Any:
        """Let a training loader start at the epoch and batch of the checkpoint, or at an epoch."""
        if self.prepared == 0:
            self.loaders = []
        self.prepared += 1
        then = self.resumed or {"epoch": -1, "orders": []}
        is_at_start = then["epoch"] == self.epoch and not self.batches
        sampler = sampler_of(loader)
        if isinstance(loader, Stream):
            saved = None
            if is_at_start and keeps_state(loader.loader):
                number = len(self._streams())
                check_states(self.saved, loader, number, trainer.world_size)
                saved = self.saved[trainer.global_rank]["states"][number]
            loader.start_at(self.epoch, saved)
        elif is_at_start:
            batches = then["batches"]
            if trainer.accumulate_grad_batches != then["accumulate"]:
                batches = ceil(batches / then["accumulate"]) * trainer.accumulate_grad_batches
            number = sum(isinstance(sampler_of(each), ExactBatches) for each in self.loaders)
            same_ranks = then["world_size"] == trainer.world_size
            orders = then["orders"] if same_ranks and isinstance(sampler, ExactBatches) else []
            expected = orders[number] if number < len(orders) else (0, 0)
            sampler.start_at(self.epoch, batches, tuple(expected))
        else:
            sampler.start_at(self.epoch)
        self.loaders.append(loader)
        return loader

    # The position

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """All training loaders are made: reject a resumed run with others than before."""
        self.accumulate = trainer.accumulate_grad_batches
        self.batches = loop.batches_of_epoch(trainer)
        self.world_size = trainer.world_size
        self.prepared = 0
        if self.resumed is None:
            return
        check_count(self.saved, len(self._streams()))
        before = self.resumed["world_size"]
        any_ranks = all(isinstance(sampler_of(loader), GlobalBatches) for loader in self.loaders)
        if before != self.world_size and not any_ranks and trainer.is_global_zero:
            print(
                f"resume: inexact: the checkpoint is of {before} ranks, and this run has "
                f"{self.world_size}: samples come in another order, except from batches.loader",
                flush=True,
            )

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.prepared = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self.batches = loop.batches_of_epoch(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_last_batch:  # max_steps ends training within the epoch
            return
        self.orders = self._orders()
        self._compare_samples(trainer)
        self.epoch = trainer.current_epoch + 1  # for the checkpoint that is made now
        self.batches = 0
        for loader in self.loaders:
            part = loader if isinstance(loader, Stream) else sampler_of(loader)
            part.start_at(self.epoch)

    def _compare_samples(self, trainer: pl.Trainer) -> None:
        """Print a line if a stream gave another number of samples than in its first epoch."""
        streams = [loader for loader in self.loaders if isinstance(loader, Stream)]
        now = [stream.samples for stream in streams]
        self.samples = self.samples or now
        if now != self.samples and trainer.is_global_zero:
            print(
                f"warning: epoch {trainer.current_epoch + 1} had {now[0]} samples on rank 0, and "
                f"the first one {self.samples[0]}; the stream ends early, or a library restored "
                "its state wrongly",
                flush=True,
            )


def check_overfitting(trainer: pl.Trainer, loader: Any) -> None:
    """Reject overfit_batches for a loader whose sampler gave whole batches.

    Lightning has replaced that sampler by one of single rows.
    """
    overfit = getattr(trainer, "overfit_batches", 0)
    whole = getattr(loader, "batch_size", 1) is None
    if overfit and whole and isinstance(getattr(loader, "sampler", None), SequentialSampler):
        raise UserError(
            f"overfit_batches={overfit} replaces the sampler, and batches.loader needs its own",
            "use limit_train_batches, with --seed for the same batches in each run",
        )


def all_loaders(loaders: Any) -> list[Any]:
    """The loaders in any collection."""
    return list(CombinedLoader(loaders, "sequential").flattened)


# States of streams


def states_of_ranks(loaders: Sequence[Stream], batches: int) -> list[dict[str, Any]]:
    """The states of the loaders of all ranks, by rank, on rank 0. Collective.

    Args:
        batches: see `Stream.state`.

    Raises:
        UserError: a state contains something other than plain values and tensors.
    """
    if not loaders:
        return []
    of_this_rank = {
        "states": [loader.state(batches) for loader in loaders],
        "facts": [_facts(loader) for loader in loaders],
    }
    contents = collectives.bytes_to_rank_0("states of loaders", _encoded(of_this_rank))
    return [torch_files.load(content) for content in contents]


def _facts(loader: Any) -> dict[str, Any]:
    """Settings that must not change for the state to be valid."""
    return {name: getattr(loader, name, None) for name in ("num_workers", "batch_size")}


def _encoded(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch_files.load(file.getvalue())
    except Exception as error:  # pickling calls the user's code
        reason = str(error).strip().splitlines() or [""]
        raise UserError(
            "The state_dict of the training loader cannot be saved in a checkpoint "
            f"({reason[0][:200]})",
            "return only text, numbers, bytes, tensors, lists and dictionaries from the state_dict "
            "of loader, data set and sampler; an array as tolist()",
        ) from error
    return file.getvalue()


def check_states(
    states: Sequence[Mapping[str, Any]], loader: Any, number: int, world_size: int
) -> None:
    """Check that a loader can resume: the number of ranks, of workers and the batch size are equal.

    Args:
        states: from `states_of_ranks`.
        loader: the ``number``th of the loaders with a state.

    Raises:
        UserError: they differ.
    """
    check_count(states, number + 1, at_least=True)
    before = {"world_size": len(states), **states[0]["facts"][number]}
    now = {"world_size": world_size, **_facts(loader)}
    changed = [f"{name}={before[name]}" for name in now if now[name] != before[name]]
    if changed:
        values = ", ".join(f"{name}={value}" for name, value in now.items())
        raise UserError(
            f"The checkpoint has the state of {type(loader.loader).__name__} with "
            f"{', '.join(changed)}, and this run has {values}",
            "resume with the earlier values, or train from the start with --resume never",
        )


def check_count(states: Sequence[Mapping[str, Any]], count: int, at_least: bool = False) -> None:
    """Raise a UserError unless the checkpoint has the states of (at least) ``count`` loaders."""
    before = len(states[0]["facts"]) if states else 0
    if before < count or (before > count and not at_least):
        raise UserError(
            f"The checkpoint has the states of {before} training loaders, and this run has {count} "
            "loaders with a state",
            "bring back the earlier loaders, or train from the start with --resume never",
        )
