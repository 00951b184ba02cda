"""A mean over all that an evaluation saw, and metrics on which ranks do not agree."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchmetrics import MaxMetric, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score

from smlightning.cluster import collectives, session
from smlightning.errors import UserError
from smlightning.training.metrics import (
    ConfusionMatrix,
    SummedMetrics,
    WeightedMean,
    accuracy,
    equal_on_ranks,
    macro_f1,
    refuse_wrong_sums,
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
    "other, equal", [(0.5, True), (0.5001, True), (0.51, False), (math.nan, False)]
)
def test_a_metric_of_one_ranks_part_is_refused_before_training_and_warned_of_later(
    other: float, equal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "current_cluster", lambda: SimpleNamespace(world_size=3, rank=0))
    monkeypatch.setattr(
        collectives, "all_sum", lambda values: values + torch.tensor([0.0, 0.5, other])
    )
    assert equal_on_ranks("val/x", 0.5, refuse=False) == 0.5
    said = capsys.readouterr().err
    if equal:
        assert equal_on_ranks("val/x", 0.5, refuse=True) == 0.5 and not said
        return
    with pytest.raises(UserError) as refused:
        equal_on_ranks("val/x", 0.5, refuse=True)
    for part in ("val/x", "0.5 on rank 0", f"{other:g} on rank 2"):
        assert part in refused.value.problem
    assert "sync_dist=True" in refused.value.cure
    assert said == f"warning: {refused.value}\n"


@pytest.mark.parametrize(
    ("metric", "refused"),
    [
        (MulticlassAccuracy(3), False),
        (BinaryAUROC(thresholds=5), False),
        (BinaryAUROC(), True),
        (MaxMetric(), True),
        (PearsonCorrCoef(), True),
    ],
)
def test_sums_over_ranks_are_for_states_that_are_sums(metric: Any, refused: bool) -> None:
    metric.dist_sync_fn = collectives.sum_over_ranks
    model = torch.nn.ModuleDict({"scores": MetricCollection({"of_val": metric})})
    if not refused:
        return refuse_wrong_sums(model)
    with pytest.raises(UserError) as error:
        refuse_wrong_sums(model)
    assert "scores.of_val" in error.value.problem


def test_other_metrics_on_another_rank_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collectives, "from_each_rank", lambda mine: [mine, [mine[0] + 1]])
    trainer: Any = SimpleNamespace(world_size=2, is_global_zero=True, callback_metrics={"a": 1.0})
    check = SummedMetrics()
    for _ in range(2):
        check.on_test_end(trainer, None)  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("Rank 1 logs other metrics") == 1
