"""Metrics over all ranks: a mean without a wait for the device, and whether ranks agree on one."""

import sys

import torch
import torchmetrics

from smlightning.cluster import collectives, session
from smlightning.errors import UserError


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


def equal_on_ranks(name: str, value: float, refuse: bool) -> float:
    """A metric's value, which rank 0 prints and chooses the best weights by. Collective.

    Args:
        refuse: else a difference is a warning, which rank 0 prints.

    Raises:
        UserError: another rank has another value, and ``refuse``.
    """
    cluster = session.current_cluster()
    slots = torch.zeros(cluster.world_size)
    slots[cluster.rank] = value
    values = collectives.all_sum(slots)
    # Some ranks add up in another order.
    equal = torch.isclose(values, values[0], rtol=1e-3, equal_nan=True).tolist()
    if all(equal):
        return value
    other = equal.index(False)
    error = UserError(
        f"{name} is {values[0]:.6g} on rank 0 and {values[other]:.6g} on rank {other}, of a part "
        "of the data each perhaps",
        "sum it over the ranks: log a torchmetrics metric, or self.log(..., sync_dist=True) "
        "where the batches are equally large",
    )
    if refuse:
        raise error
    if cluster.rank == 0:
        print(f"warning: {error}", file=sys.stderr)
    return value
