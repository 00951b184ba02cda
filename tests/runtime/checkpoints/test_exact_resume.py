"""A run that ends at any moment and resumes has the same bits as one that never ended.

Several ranks, kills and stops from outside: training/test_exact_draws.py, benchmarks/stress.py.
"""

from typing import Any

import pytest
import torch
from pytorch_lightning import callbacks

from small_training import (
    BATCHES,
    SIZE,
    Alone,
    Fit,
    Resumable,
    assert_same,
    directory,
)
from smlightning.checkpoints import files
from smlightning.data import batches


class AtOnce(callbacks.EarlyStopping):
    """A type of these tests: train.py may have an EarlyStopping already."""


# An epoch has 8 batches; validation and the test have 2 each. Checkpoints: every 3 steps.
MOMENTS = [
    ("on_train_batch_end", 2),  # before the first checkpoint
    ("on_train_batch_end", 5),
    ("on_train_batch_end", BATCHES),  # the first epoch is trained, validation is not begun
    ("on_train_batch_end", 2 * BATCHES + 1),
    ("on_validation_batch_end", 3),  # after the two of the validation before training
    ("on_train_epoch_end", 2),
    ("before_end", 1),
    ("on_test_batch_end", 1),
    ("finish", 1),
]
CASES = [
    *[(*moment, -1) for moment in MOMENTS],
    ("before_end", 1, 3 * BATCHES),
    ("before_end", 1, 2 * BATCHES + 3),
]


@pytest.mark.parametrize(("hook", "times", "max_steps"), CASES)
def test_a_run_that_ends_at_any_moment_resumes_exactly(
    hook: str,
    times: int,
    max_steps: int,
    fit: Fit,
    alone: Alone,
    capsys: pytest.CaptureFixture[str],
) -> None:
    moment = hook, times
    options = {"epochs": 3, "checkpoint_steps": 3, "batch_size": SIZE, "max_steps": max_steps}
    whole, _ = alone(data=Resumable, **options)
    fit(data=Resumable, output_dir="resumed", crash=moment, **options)
    if moment[0] != "finish":
        expected = files.newest_path(directory("resumed"))
        capsys.readouterr()
        fit(data=Resumable, output_dir="resumed", **options)
        lines = capsys.readouterr().out.splitlines()
        resumed = [line for line in lines if line.startswith("resume: ")]
        assert len(resumed) == bool(expected)
        assert all(str(expected) in line for line in resumed)
    assert_same(whole, "resumed", moment)


def test_a_training_that_early_stopping_ended_is_complete(fit: Fit) -> None:
    """Resumed in its test, it trains no further."""
    stopping = {"epochs": 9, "checkpoint_steps": 1}

    def go(output: str, **more: Any) -> int:
        stopper = AtOnce("val/loss", divergence_threshold=-1.0)
        options = {"output_dir": output, **stopping, **more}
        return fit(data=Resumable, callbacks=(stopper,), **options).global_step

    assert go("alone") == BATCHES
    go("resumed", crash=("on_test_batch_end", 1))
    assert go("resumed") == BATCHES
    assert_same("alone", "resumed", "EarlyStopping")


def test_ranks_and_accumulation_divide_the_same_global_batches() -> None:
    """From 2 ranks to 1 or 4, in the middle of an epoch: each remaining sample comes once."""
    lengths = torch.randint(1, 30, (103,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = batches.GlobalBatches(lengths, 16, seed=5)
    whole.start = lambda: (1, 0)
    expected = [sorted(batch.rows) for batch in whole]
    for world_size, accumulate in ((1, 1), (1, 4), (2, 2), (4, 1), (3, 5)):
        seen: list[list[int]] = [[] for _ in expected[3:]]
        for rank in range(world_size):
            order = batches.GlobalBatches(lengths, 16, rank, world_size, 5, accumulate)
            order.start = lambda done=3 * accumulate: (1, done)
            assert len(order) == len(expected) * accumulate
            for i, batch in enumerate(order):
                seen[i // accumulate].extend(batch.rows[: batch.real])
                size = len(expected[3 + i // accumulate])
                assert batch.scale == pytest.approx(world_size * accumulate / size)
        assert [sorted(rows) for rows in seen] == expected[3:]
