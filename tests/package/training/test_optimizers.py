"""The learning rate rises, falls to 0, and is finite whatever the number of steps; clipping."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from small_training import Fit, Line
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
    assert configured(1)["optimizer"].defaults["fused"]
    assert not configured(1, precision="16-mixed")["optimizer"].defaults["fused"]


class Steep(Line):
    """Gradients far above 1, whose norm after clipping is noted."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norms: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return 1e6 * self.loss(batch)

    def configure_optimizers(self) -> Any:
        return adamw_with_cosine(self.trainer, self.net, 0.05, 0.0, 0.1)

    def configure_gradient_clipping(self, *given: Any, **options: Any) -> None:
        super().configure_gradient_clipping(*given, **options)
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), math.inf)
        self.norms.append(norm.item())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_clips_for_the_fused_optimizer(precision: str, fit: Fit) -> None:
    trainer = fit(Steep, precision=precision, gradient_clip_val=0.5, max_steps=4)
    model: Any = trainer.lightning_module
    assert trainer.optimizers[0].defaults["fused"]
    assert model.norms == pytest.approx([0.5] * 4, rel=1e-3)
