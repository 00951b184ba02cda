"""Metrics over all ranks: a mean without a wait for the device, and whether ranks agree on one."""

import hashlib
import sys
from typing import Any

import pytorch_lightning as pl
import torch
import torchmetrics
from torchmetrics.utilities import dim_zero_sum

from smlightning.cluster import collectives, session
from smlightning.errors import UserError

SUM_IT = (
    "sum it over the ranks: log a torchmetrics metric, or self.log(..., sync_dist=True) where the "
    "batches are equally large"
)
SHOWN = 4  # names in a sentence


def refuse_wrong_sums(model: torch.nn.Module) -> None:
    """Refuse ``sum_over_ranks`` for a metric with states that are no sums.

    torchmetrics 1.9 keeps in ``Metric._reductions`` how each state of all ranks is made one.
    """
    for name, metric in model.named_modules():
        if getattr(metric, "dist_sync_fn", None) is not collectives.sum_over_ranks:
            continue
        reductions: dict[str, Any] = getattr(metric, "_reductions", {})
        others = [state for state, reduction in reductions.items() if reduction != dim_zero_sum]
        if others:
            raise UserError(
                f"{name or 'the metric'} ({type(metric).__name__}) has the state {others[0]}, "
                "which is no sum, and dist_sync_fn=sum_over_ranks would give wrong figures on "
                "several ranks",
                "leave dist_sync_fn out, or give the metric thresholds if it takes some",
            )


class WeightedMean(torchmetrics.Metric):
    """Sum of values × weights, divided by the sum of the weights, in float64; nan stays nan,
    whatever its weight.

    ``torchmetrics.MeanMetric`` looks for nan in each batch, for which a GPU has to be waited for;
    told not to (``nan_strategy="disable"``), torchmetrics 1.9 takes every weight for 1.
    """

    full_state_update = False
    total: torch.Tensor
    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__(dist_sync_fn=collectives.sum_over_ranks)
        for name in ("total", "weight"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: torch.Tensor, weights: torch.Tensor) -> None:
        """Values and weights of one shape."""
        self.total += (values.double() * weights).sum()
        self.weight += weights.sum(dtype=torch.float64)

    def compute(self) -> torch.Tensor:
        return self.total / self.weight


class ConfusionMatrix(torchmetrics.Metric):
    """How often each class was predicted for each true one: (classes, classes) float64, a row for
    each true class.

    torchmetrics' leaves rows out by ``ignore_index`` and counts by ``bincount``; a GPU has to be
    waited for in both.
    """

    full_state_update = False
    counts: torch.Tensor

    def __init__(self, classes: int) -> None:
        super().__init__(dist_sync_fn=collectives.sum_over_ranks)
        zeros = torch.zeros(classes, classes, dtype=torch.float64)
        self.add_state("counts", zeros, dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> None:
        """(B, classes) logits, (B,) classes, and how often each row counts, 0 for a filler."""
        cells = target * len(self.counts) + logits.argmax(1)
        self.counts.view(-1).index_add_(0, cells, weights.double())

    def compute(self) -> torch.Tensor:
        return self.counts


def accuracy(confusion: torch.Tensor) -> torch.Tensor:
    """The share of all samples whose class was predicted; nan where there is none."""
    return confusion.trace() / confusion.sum()


def macro_f1(confusion: torch.Tensor) -> torch.Tensor:
    """The mean F1 of the classes that occur or were predicted."""
    both = confusion.sum(0) + confusion.sum(1)
    present = both > 0
    scores = 2 * confusion.diagonal() / both.where(present, 1)
    return scores.sum() / present.sum()


def equal_on_ranks(name: str, value: float, refuse: bool) -> float:
    """A metric's value on rank 0, by which every rank chooses the best weights. Collective.

    Args:
        refuse: else a difference is a warning, which rank 0 prints.

    Raises:
        UserError: another rank has another value, and ``refuse``.
    """
    cluster = session.current_cluster()
    slots = torch.zeros(cluster.world_size, dtype=torch.float64)
    slots[cluster.rank] = value
    values = collectives.all_sum(slots)
    # Some ranks add up in another order.
    equal = torch.isclose(values, values[0], rtol=1e-3, equal_nan=True).tolist()
    if all(equal):
        return values[0].item()
    other = equal.index(False)
    error = UserError(
        f"{name} is {values[0]:.6g} on rank 0 and {values[other]:.6g} on rank {other}, of a part "
        "of the data each perhaps",
        SUM_IT,
    )
    if refuse:
        raise error
    if cluster.rank == 0:
        print(f"warning: {error}", file=sys.stderr)
    return values[0].item()


class SummedMetrics(pl.Callback):
    """Says once which metrics of the first validation, epoch and test are each rank's own; refuses
    those that would be summed wrongly.
    """

    def __init__(self) -> None:
        self.stages: set[str] = set()  # that were compared: the same on every rank
        self.names: set[str] = set()  # of metrics that were compared

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        refuse_wrong_sums(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._compare(trainer, "validation")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "epoch")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "test")

    def _compare(self, trainer: pl.Trainer, stage: str) -> None:
        """Compare what was logged and not compared before. Collective."""
        if trainer.world_size == 1 or stage in self.stages:
            return
        self.stages.add(stage)
        names = sorted(set(trainer.callback_metrics) - self.names)
        self.names.update(names)
        values = [float(trainer.callback_metrics[name]) for name in names]
        warning = _of_one_rank(names, values)
        if warning and trainer.is_global_zero:
            print(f"warning: {warning}", file=sys.stderr)


def _of_one_rank(names: list[str], values: list[float]) -> UserError | None:
    """What is to be said of metrics that differ between ranks. Collective."""
    content = hashlib.blake2b("\n".join(names).encode(), digest_size=6).digest()
    logged = [number for (number,) in collectives.from_each_rank([int.from_bytes(content)])]
    if len(set(logged)) > 1:
        return UserError(
            f"Rank {next(r for r in range(len(logged)) if logged[r] != logged[0])} logs other "
            f"metrics than rank 0, which logs {', '.join(names) or 'none'}",
            "log the same on every rank: rank 0's are printed and saved",
        )
    cluster = session.current_cluster()
    slots = torch.zeros(cluster.world_size, len(names))
    slots[cluster.rank] = torch.tensor(values)
    ranks = collectives.all_sum(slots)
    # Some ranks add up in another order.
    same = torch.isclose(ranks, ranks[0], rtol=1e-3, equal_nan=True).all(0).tolist()
    differing = [number for number, equal in enumerate(same) if not equal]
    if not differing:
        return None
    first = ranks[:, differing[0]]
    other = torch.isclose(first, first[0], rtol=1e-3, equal_nan=True).tolist().index(False)
    shown = [names[number] for number in differing[:SHOWN]]
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return UserError(
        f"{', '.join(shown)}{more}: each rank has its own ({shown[0]} is {first[0]:.6g} on rank 0 "
        f"and {first[other]:.6g} on rank {other}), and rank 0's is printed and saved",
        SUM_IT,
    )
