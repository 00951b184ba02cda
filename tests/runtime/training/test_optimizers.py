"""The learning rate rises, falls to 0, and is finite whatever the number of steps; clipping."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning.plugins.precision import MixedPrecision

from smlightning.training.optimizers import adamw_with_cosine


def configured(steps: int, warmup_ratio: float = 0.1, precision: str = "32-true") -> dict:
    trainer = SimpleNamespace(precision=precision, estimated_stepping_batches=steps)
    return adamw_with_cosine(trainer, torch.nn.Linear(3, 2), 0.4, 0.01, warmup_ratio)


def test_the_learning_rate_rises_and_falls() -> None:
    made = configured(100)
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) == pytest.approx(0.4)
    assert rates[:10] == pytest.approx([0.04 * step for step in range(1, 11)])
    assert all(rate > following for rate, following in itertools.pairwise(rates[11:]))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_only_matrices_have_weight_decay() -> None:
    groups = configured(100)["optimizer"].param_groups
    decay = {group["weight_decay"]: [p.ndim for p in group["params"]] for group in groups}
    assert decay == {0.01: [2], 0.0: [1]}


@pytest.mark.parametrize("steps", [0, 1])
def test_the_schedule_is_finite_for_one_step(steps: int) -> None:
    (rate, _) = configured(steps)["lr_scheduler"]["scheduler"].get_last_lr()
    assert 0 < rate <= 0.4


def test_a_gradient_scaler_gets_no_fused_kernel() -> None:
    assert not configured(1, precision="16-mixed")["optimizer"].defaults["fused"]


def test_lightning_clips_the_gradients_of_the_fused_optimizer() -> None:
    optimizer = configured(1, precision="bf16-mixed")["optimizer"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 100.0)
    MixedPrecision("bf16-mixed", "cpu").clip_gradients(optimizer, 0.5)
    norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf)
    assert optimizer.defaults["fused"] and norm.item() == pytest.approx(0.5, rel=1e-3)
