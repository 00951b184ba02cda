"""Random numbers in a step depend only on seed, step and rank."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from smlightning.training.seeds import StepSeed


def trainer(batch: int, rank: int = 0) -> Any:
    """In training on a rank's batch of this number."""
    epoch_loop = SimpleNamespace(total_batch_idx=batch, batch_idx=batch)
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=epoch_loop),
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        global_rank=rank,
        current_epoch=0,
        is_last_batch=True,
    )


def drawn_in_step(seed: int, batch: int, rank: int = 0) -> float:
    torch.rand(7)  # whatever came before
    StepSeed(seed).on_train_batch_start(trainer(batch, rank), None, None, batch)
    return torch.rand(1).item()


def drawn_while_fetching(seed: int, batch: int, rank: int = 0) -> tuple[float, float, float]:
    StepSeed(seed).on_train_batch_end(trainer(batch - 1, rank))
    return torch.rand(1).item(), random.random(), float(np.random.rand())


@pytest.mark.parametrize("draw", [drawn_in_step, drawn_while_fetching])
def test_random_numbers_depend_on_seed_step_and_rank(draw: Any) -> None:
    first = draw(5, 3)
    others = [draw(6, 3), draw(5, 4), draw(5, 3, rank=1)]
    assert draw(5, 3) == first and first not in others
    assert len(set(others)) == len(others)


def test_fetching_and_training_use_different_numbers() -> None:
    assert drawn_while_fetching(5, 3)[0] != drawn_in_step(5, 3)


def test_a_streams_iterator_has_the_numbers_of_its_epoch() -> None:
    """It is made after the epoch before, or when training starts."""
    within = StepSeed(5)
    within.on_train_epoch_end(trainer(7), None)  # type: ignore[arg-type]
    expected = torch.rand(1).item()
    resumed = StepSeed(5)
    resumed.load_state_dict(within.state_dict())
    resumed.on_fit_start(trainer(-1), None)  # type: ignore[arg-type]
    assert torch.rand(1).item() == expected
