"""Random numbers of a step depend only on seed, step and rank; those of `setup` on the seed."""

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader, random_split

from small_training import BATCHES, SIZE, Fit, Line, Numbers, rows
from smlightning.training.seeds import StepSeed


def trainer(batch: int, rank: int = 0) -> Any:
    """In training on a rank's batch of this number."""
    epoch_loop = SimpleNamespace(total_batch_idx=batch, batch_idx=batch)
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=epoch_loop),
        callbacks=[],
        precision_plugin=SimpleNamespace(convert_input=None),
        training=True,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        global_rank=rank,
        current_epoch=0,
        is_last_batch=True,
    )


def drawn_in_step(seed: int, batch: int, rank: int = 0) -> float:
    torch.rand(7)  # whatever came before
    StepSeed(seed).on_train_batch_start(trainer(batch, rank), None, None, batch)
    return torch.rand(1).item()


def test_random_numbers_depend_on_seed_step_and_rank() -> None:
    draw = drawn_in_step
    first = draw(5, 3)
    others = [draw(6, 3), draw(5, 4), draw(5, 3, rank=1)]
    assert draw(5, 3) == first and first not in others
    assert len(set(others)) == len(others)


def test_generators_of_the_model_are_seeded() -> None:
    """Also those of a part of it; each step has its own numbers."""

    def drawn(batch: int) -> list[float]:
        model = torch.nn.Sequential(torch.nn.Identity())
        model[0].noise, model.numbers = torch.Generator(), np.random.default_rng()
        seeds = StepSeed(5)
        seeds.on_train_start(trainer(batch), model)  # type: ignore[arg-type]
        seeds.on_train_batch_start(trainer(batch), model, None, batch)  # type: ignore[arg-type]
        return [torch.rand(1, generator=model[0].noise).item(), model.numbers.random()]

    assert drawn(3) == drawn(3) != drawn(4)


class Split(Numbers):
    """Splits its rows in ``setup`` without a generator, and prepares data with random numbers."""

    trained: ClassVar[list[list[int]]] = []

    def prepare_data(self) -> None:
        torch.rand(3)

    def setup(self, stage: str) -> None:
        parts = random_split(rows(SIZE * BATCHES + 10), [SIZE * BATCHES, 10])
        self.points, self.held_out = parts
        self.trained.append(sorted(parts[0].indices))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.points, SIZE, shuffle=True)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.held_out, 5)


def test_a_random_split_is_the_same_for_training_test_and_resume(fit: Fit) -> None:
    fit(Line, Split, output_dir="alone")
    fit(Line, Split, crash=("before_batch", 4), checkpoint_steps=1)
    fit(Line, Split)
    assert len(Split.trained) == 5
    assert all(rows == Split.trained[0] for rows in Split.trained)
