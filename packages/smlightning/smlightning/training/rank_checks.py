"""Checks that ranks agree where they must, and that each trains on its own part of the data.

Ranks that differ train without an error: a label's number has another meaning on each rank, the
weights drift apart, or a metric covers one rank's samples. Each check compares a few numbers with
rank 0's, by the one reduction that every backend has (cluster/collectives.py), and gathers those of
every rank only if they differ.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

from smlightning.cluster import collectives, exchange, session
from smlightning.errors import UserError
from smlightning.tensors import checksum, digest
from smlightning.training.metrics import check_sums

SHOWN = 60  # characters of a value in an error
LISTED = 8  # ranks or metrics in an error
MOST = 32  # batches that DividedData compares
TOLERANCE = 1e-3  # of a metric: ranks may add up in another order
SUM_IT = (
    "sum it over the ranks: log a torchmetrics metric, or self.log(..., sync_dist=True) where the "
    "batches are equally large"
)
GIVE_ALL = (
    "give every rank all of the data: Lightning divides an ordinary DataLoader, and "
    "smlightning.data.batches.loader gives each rank equally many batches"
)


class EqualRanks(pl.Callback):
    """Compares the data's fingerprint, the attributes that `Model.save` writes, the numbers of
    batches, and after the first epoch the weights.
    """

    def __init__(self) -> None:
        self.weights_compared = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Called right after the data's own ``setup``."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage == "fit" and trainer.world_size > 1 and data is not None:
            check_attributes(data, ("fingerprint", *saved_attributes(pl_module)))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            check_attributes(pl_module, saved_attributes(pl_module))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_lengths("training", [trainer.num_training_batches])
        check_lengths("validation", trainer.num_val_batches)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_lengths("the test", trainer.num_test_batches)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        ddp = trainer.strategy.model
        if isinstance(ddp, DistributedDataParallel) and not self.weights_compared:
            self.weights_compared = True
            check_weights(pl_module, with_buffers=not ddp.broadcast_buffers)


class DividedData(pl.Callback):
    """Compares the ranks' first two batches of a fit, before the second is trained on.

    If the batches of a rank are equal to each other, it compares more, at most MOST. Uniform data
    prove nothing, nor does an epoch of one batch: a sampler may have to give one sample to two
    ranks.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.batches: list[list[int]] = []  # for each batch, the ranks' digests: on rank 0
        self.done = trainer.world_size == 1

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.done:
            return
        # A sum fails at once if a rank was killed; the store would wait for it.
        ended = collectives.any_rank(bool(trainer.is_last_batch))
        batches = exchange.to_rank_0("batches", digest(batch))
        same, self.done = exchange.from_rank_0(
            "compared batches", lambda: self._compare(batches, ended)
        )
        if same:
            raise UserError(
                f"Ranks {same} of {trainer.world_size} have the same batches and would train on "
                "the same data",
                "return an ordinary DataLoader from train_dataloader, which Lightning divides "
                "among the ranks; give your own sampler or stream each rank's part by "
                "dist.get_global_rank(); seed your own random generator with the rank",
            )

    def _compare(self, batches: list[int], ended: bool) -> tuple[str, bool]:
        """The ranks that have the same batches, which differ from each other, and whether the
        comparison is complete.

        Args:
            batches: the ranks' digests.
            ended: on a rank this is the epoch's last batch, so that it compares no more.
        """
        self.batches.append(batches)
        ranks = list(zip(*self.batches, strict=True))
        varied = [digests for digests in ranks if len(set(digests)) > 1]
        for digests, times in Counter(varied).items():
            if times > 1:
                return listed([rank for rank, other in enumerate(ranks) if other == digests]), True
        return "", ended or len(varied) == len(ranks) or len(self.batches) == MOST


class DividedStream(pl.Callback):
    """Rejects a stream that each worker of its loader reads whole: training would see it as many
    times as there are workers.

    The first batches then come in groups, one batch from each worker, that are equal.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.workers = stream_workers(trainer.train_dataloader)
        self.digests: list[int] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.workers < 2 or len(self.digests) == 2 * self.workers:
            return
        self.digests.append(digest(batch))
        first, second = set(self.digests[: self.workers]), set(self.digests[self.workers :])
        if len(self.digests) < 2 * self.workers or first == second:
            return
        if len(first) == len(second) == 1:
            raise UserError(
                f"Each of the train loader's {self.workers} workers gives the same batches, so "
                f"training sees each {self.workers} times",
                "let the IterableDataset give each worker a part of the data "
                "(torch.utils.data.get_worker_info), or set num_workers to 1",
            )


class SharedMetrics(pl.Callback):
    """Warns once after the first validation, epoch and test of metrics that differ between ranks.

    Before training it rejects metrics that would be summed wrongly.
    """

    def __init__(self) -> None:
        self.stages: set[str] = set()  # compared so far, the same on every rank
        self.names: set[str] = set()  # metrics compared so far

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_sums(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._compare(trainer, "validation")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "epoch")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "test")

    def _compare(self, trainer: pl.Trainer, stage: str) -> None:
        if trainer.world_size == 1 or stage in self.stages:
            return
        self.stages.add(stage)
        names = sorted(set(trainer.callback_metrics) - self.names)
        self.names.update(names)
        values = [float(trainer.callback_metrics[name]) for name in names]
        difference = metric_difference(names, values)
        if difference and trainer.is_global_zero:
            print(f"warning: {difference}", file=sys.stderr)


# Every function below that gathers from the ranks is collective.


def stream_workers(loaders: Any) -> int:
    """The most workers of any loader of an IterableDataset; 0 without such a loader."""
    return max(
        (
            getattr(loader, "num_workers", 0)
            for loader in CombinedLoader(loaders, "sequential").flattened
            if isinstance(getattr(loader, "dataset", None), IterableDataset)
        ),
        default=0,
    )


def saved_attributes(model: Any) -> tuple[str, ...]:
    """Attributes of the model or of its data module that `Model.save` writes."""
    return tuple(getattr(model, "saved_attributes", ("labels", "classes")))


def check_attributes(owner: Any, names: Sequence[str]) -> None:
    """Raise a UserError if an attribute of plain values or tensors differs between ranks."""
    values = [vars(owner).get(name) for name in names]
    keyed = [[*value.items()] if isinstance(value, dict) else value for value in values]
    difference = first_difference([digest(value) for value in keyed])
    if difference is not None:
        rank, number = difference
        shown = repr(values[number])
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        raise UserError(
            f"{type(owner).__name__}.{names[number]} differs between ranks 0 and {rank} (here "
            f"{shown})",
            "give every host the same files; sort values that come from a set, whose order "
            "differs between processes; or write the value in prepare_data and read it in setup",
        )


def check_lengths(name: str, batches: Sequence[int | float]) -> None:
    """Raise a UserError if loaders of known length have other numbers of batches on other ranks."""
    numbers = [-1 if math.isinf(number) else int(number) for number in batches]
    if not numbers or not collectives.differ(numbers):
        return
    for counts in collectives.from_each_rank(torch.tensor(numbers)).T.tolist():
        least, most = min(counts), max(counts)
        if least not in (-1, most):
            raise UserError(
                f"A loader of {name} has {least} batches on rank {counts.index(least)} and {most} "
                f"on rank {counts.index(most)}; expected equally many on every rank",
                GIVE_ALL,
            )


def equally_many(loaders: Any) -> bool:
    """Whether all ranks get equally many batches: False for a stream, whose length is unknown."""
    total = 0
    for loader in CombinedLoader(loaders, "sequential").flattened:
        size = sized_len(loader)
        stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
        total = -1 if size is None or stream or total < 0 else total + size
    return not collectives.differ([total]) and total >= 0


def check_weights(model: torch.nn.Module, with_buffers: bool) -> None:
    """Raise a UserError if a parameter, or whether it is trained, differs between ranks."""
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
    if with_buffers:
        tensors.update(model.named_buffers())
    numbers = [checksum(tensor) * 2 + tensor.requires_grad for tensor in tensors.values()]
    difference = first_difference(numbers)
    if difference is not None:
        rank, number = difference
        raise UserError(
            f"{list(tensors)[number]} differs between ranks 0 and {rank} after an epoch",
            "change weights only in the optimizer, or in the same way on every rank, and set "
            "requires_grad equally on all ranks",
        )


def equal_on_ranks(name: str, value: float, check: bool) -> float:
    """A metric's value on rank 0, by which every rank chooses the best weights.

    Args:
        check: raise a UserError if the ranks' values differ; else rank 0 prints a warning.
    """
    difference = metric_difference([name], [value])
    if difference and check:
        raise difference
    if difference and session.current_cluster().rank == 0:
        print(f"warning: {difference}", file=sys.stderr)
    return collectives.of_rank_0(torch.tensor(value, dtype=torch.float64)).item()


def metric_difference(names: list[str], values: list[float]) -> UserError | None:
    """The warning about metrics that differ between ranks."""
    logged = first_difference([digest(names)])
    if logged is not None:
        return UserError(
            f"Rank {logged[0]} logs other metrics than rank 0, which logs "
            f"{', '.join(names) or 'none'}",
            "log the same metrics on every rank: only rank 0's are printed and saved",
        )
    mine = torch.tensor(values, dtype=torch.float64)
    if not collectives.any_rank(not _near(mine, collectives.of_rank_0(mine)).all()):
        return None
    ranks = collectives.from_each_rank(mine)
    equal = _near(ranks, ranks[0])
    differing = [number for number, same in enumerate(equal.all(0).tolist()) if not same]
    if not differing:
        return None
    first = differing[0]
    other = equal[:, first].tolist().index(False)
    return UserError(
        f"{listed([names[number] for number in differing])}: each rank has its own value "
        f"({names[first]} is {ranks[0, first]:.6g} on rank 0 and {ranks[other, first]:.6g} on rank "
        f"{other}), and only rank 0's is printed and saved",
        SUM_IT,
    )


def _near(values: torch.Tensor, rank_0s: torch.Tensor) -> torch.Tensor:
    return torch.isclose(values, rank_0s, rtol=TOLERANCE, equal_nan=True)


def first_difference(numbers: Sequence[int]) -> tuple[int, int] | None:
    """The first rank that differs from rank 0, and the position of the number that differs."""
    if not numbers or not collectives.differ(numbers):
        return None
    ranks = collectives.from_each_rank(torch.tensor(numbers))
    rank, position = (ranks != ranks[0]).nonzero()[0].tolist()
    return rank, position


def listed(names: Sequence[Any]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:LISTED]))
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"
