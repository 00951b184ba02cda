"""Metrics over all ranks, without a wait for the device."""

from typing import Any

import pytest
import torch
from torchmetrics import MaxMetric, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score

from smlightning.cluster import collectives
from smlightning.errors import UserError
from smlightning.training.metrics import (
    ConfusionMatrix,
    WeightedMean,
    accuracy,
    check_sums,
    macro_f1,
)
from waits import Waits


def test_a_mean_has_weights_and_keeps_nan() -> None:
    mean = WeightedMean()
    mean.update(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]))
    mean.update(torch.tensor([3.0]), torch.tensor([1.0]))
    assert mean.compute().item() == 1.5
    mean.update(torch.tensor([float("nan")]), torch.tensor([1.0]))
    assert mean.compute().isnan()


def test_accuracy_and_f1_are_those_of_torchmetrics_without_a_wait() -> None:
    """With fillers, and a class that neither occurs nor is predicted."""
    options = {"num_classes": 6, "ignore_index": -1}
    of_all = MulticlassAccuracy(average="micro", **options)
    of_classes = MulticlassF1Score(average="macro", **options)
    ours, draw = ConfusionMatrix(6), torch.Generator().manual_seed(0)
    for size in (7, 1, 30):
        target = torch.randint(0, 5, (size,), generator=draw)
        logits = torch.randn(size, 6, generator=draw)
        logits[:, 5] = -9
        weights = (torch.arange(size) < size - 1).float()
        with Waits() as waits:
            ours.update(logits, target, weights)
        assert not waits.names
        for metric in (of_all, of_classes):
            metric.update(logits, target.masked_fill(weights == 0, -1))
    confusion = ours.compute()
    assert confusion.sum() == 35
    torch.testing.assert_close(accuracy(confusion).float(), of_all.compute())
    torch.testing.assert_close(macro_f1(confusion).float(), of_classes.compute())


@pytest.mark.parametrize(
    ("metric", "rejected"),
    [
        (MulticlassAccuracy(3), False),
        (BinaryAUROC(thresholds=5), False),
        (BinaryAUROC(), True),
        (MaxMetric(), True),
        (PearsonCorrCoef(), True),
    ],
)
def test_sums_over_ranks_are_for_states_that_are_sums(metric: Any, rejected: bool) -> None:
    metric.dist_sync_fn = collectives.sum_over_ranks
    model = torch.nn.ModuleDict({"scores": MetricCollection({"of_val": metric})})
    if not rejected:
        return check_sums(model)
    with pytest.raises(UserError) as error:
        check_sums(model)
    assert "scores.of_val" in error.value.problem
