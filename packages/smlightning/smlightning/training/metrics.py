"""Metrics over all ranks, without a wait for the device."""

import inspect
from typing import Any

import pytorch_lightning as pl
import torch
import torchmetrics
from torchmetrics.utilities import dim_zero_sum

from smlightning.cluster import collectives
from smlightning.errors import UserError

OF_LIGHTNING = ("pytorch_lightning", "lightning_fabric", "lightning", "torch", "smlightning")
ASKS_FOR_STAGE = {"sanity_checking", "SANITY_CHECKING", "validating", "stage"}


def check_sums(model: torch.nn.Module) -> None:
    """Raise a UserError if a metric uses ``sum_over_ranks`` and has a state that is not a sum.

    torchmetrics 1.9 keeps the reduction of each state in ``Metric._reductions``.
    """
    for name, metric in model.named_modules():
        if getattr(metric, "dist_sync_fn", None) is not collectives.sum_over_ranks:
            continue
        reductions: Any = metric._reductions
        others = [state for state, reduction in reductions.items() if reduction != dim_zero_sum]
        if others:
            raise UserError(
                f"{name or 'the metric'} ({type(metric).__name__}) has the state {others[0]}, "
                "which is not a sum: dist_sync_fn=sum_over_ranks would give wrong values on "
                "several ranks",
                "leave dist_sync_fn out, or give the metric thresholds if it takes some",
            )


def check_states(model: torch.nn.Module) -> None:
    """Raise a UserError for an own metric without a state that torchmetrics (1.9) knows."""
    for name, metric in model.named_modules():
        if not isinstance(metric, torchmetrics.Metric) or metric._defaults:
            continue
        parts = [part for part in metric.modules() if isinstance(part, torchmetrics.Metric)]
        own_reset = type(metric).reset is not torchmetrics.Metric.reset
        if len(parts) == 1 and not own_reset:
            raise UserError(
                f"{name} ({type(metric).__name__}) has no state, so torchmetrics neither resets it "
                "after an epoch nor adds it up over ranks",
                'make its sums states: self.add_state("total", torch.tensor(0.0), "sum")',
            )


def updates(model: torch.nn.Module, only_computed: bool = False) -> dict[str, int]:
    """How often each torchmetrics object was updated since its reset.

    Args:
        only_computed: leave out those whose ``compute()`` was not called after the last update;
            torchmetrics (1.9) keeps its result in ``Metric._computed``.
    """
    return {
        name: metric.update_count
        for name, metric in model.named_modules()
        if isinstance(metric, torchmetrics.Metric)
        if not only_computed or metric._computed is not None
    }


def sanity_check_differs(trainer: pl.Trainer) -> bool:
    """Whether a real validation may log other metrics than Lightning's sanity check.

    It may if a metric's name contains that stage, as ``sanity_check_loss``, and if the code of the
    model or of a callback asks for the stage.
    """
    if any("sanity" in name for name in trainer.callback_metrics):
        return True
    owners: list[Any] = [trainer.lightning_module, *trainer.callbacks]  # type: ignore[attr-defined]
    kinds = {kind for owner in owners for kind in type(owner).__mro__}
    foreign = (kind for kind in kinds if kind.__module__.partition(".")[0] not in OF_LIGHTNING)
    values = (value for kind in foreign for value in vars(kind).values())
    functions = (getattr(value, "fget", None) or inspect.unwrap(value) for value in values)
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    while codes:
        code = codes.pop()
        if ASKS_FOR_STAGE.intersection(code.co_names):
            return True
        codes += filter(inspect.iscode, code.co_consts)
    return False


class WeightedMean(torchmetrics.Metric):
    """Sum of values × weights, divided by the sum of the weights, in float64; nan stays nan,
    whatever its weight.

    ``torchmetrics.MeanMetric`` looks for nan in each batch and so waits for the GPU; with
    ``nan_strategy="disable"`` torchmetrics 1.9 ignores the weights.
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
    """Counts of predicted classes: (classes, classes) float64, a row per true class.

    torchmetrics' own uses ``ignore_index`` and ``bincount``; both wait for the GPU.
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
