"""The mean of what an evaluation sees, over all ranks, without a wait for the device in each batch."""

import torch
import torchmetrics

from runtime import ranks


class WeightedMean(torchmetrics.Metric):
    """Sum of values × weights, divided by the sum of the weights, in float64; nan stays nan, whatever its weight.

    ``torchmetrics.MeanMetric`` looks for nan in each batch, for which a GPU has to be waited for; told not to
    (``nan_strategy="disable"``), torchmetrics 1.9 takes every weight for 1.
    """

    full_state_update = False
    total: torch.Tensor
    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__(dist_sync_fn=ranks.sum_over_ranks)
        for name in ("total", "weight"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: torch.Tensor, weights: torch.Tensor) -> None:
        """Values and weights of one shape."""
        self.total += (values.double() * weights).sum()
        self.weight += weights.sum(dtype=torch.float64)

    def compute(self) -> torch.Tensor:
        return self.total / self.weight
