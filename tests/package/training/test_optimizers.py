"""The learning rate rises, falls to 0, and is finite whatever the number of steps; clipping."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smlightning.training.optimizers import adamw_with_cosine, clip_gradients


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


def parameters(*gradients: torch.Tensor | None) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros(3, 2)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient if gradient is None else gradient.clone()
    return made


@pytest.mark.parametrize("value", [0.0, 0.1, 1e3])
@pytest.mark.parametrize("algorithm", [None, "norm", "value"])
def test_gradients_are_clipped_as_torch_does(value: float, algorithm: str | None) -> None:
    gradients = torch.randn(3, 2), None, torch.randn(3, 2)
    ours, theirs = parameters(*gradients), parameters(*gradients)
    clip_gradients(iter(ours), value, algorithm)
    if value and algorithm == "value":
        torch.nn.utils.clip_grad_value_(theirs, value)
    elif value:
        torch.nn.utils.clip_grad_norm_(theirs, value)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    (parameter,) = parameters(torch.full((3, 2), torch.inf))
    clip_gradients([parameter], 1.0)
    assert parameter.grad is not None and parameter.grad.isnan().all()


class Operations(TorchDispatchMode):
    """Counts operations for which a GPU would start a kernel."""

    VIEWS = ("detach", "split", "view", "_unsafe_view", "alias", "view_as_real")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        self.count += name not in self.VIEWS
        return func(*args, **(kwargs or {}))


def test_a_step_of_hundreds_of_tensors_is_a_few_operations() -> None:
    """BERT-large has 393 tensors, which took 1,590 operations one by one."""
    network = torch.nn.ParameterList(
        torch.zeros((3, 2) if number % 2 else 3) for number in range(393)
    )
    trainer = SimpleNamespace(precision="32-true", estimated_stepping_batches=9)
    optimizer = adamw_with_cosine(trainer, network, 0.1, 0.01, 0.1)["optimizer"]
    for _ in range(2):  # the first step makes the optimizer's state
        for parameter in network:
            parameter.grad = torch.ones_like(parameter)
        with Operations() as operations:
            clip_gradients(network, 1.0)
            optimizer.step()
    assert operations.count <= 60
