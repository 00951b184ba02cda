"""A hang is a time without a mark; time in which a checkpoint is written counts less."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

from smlightning.training import hangs
from smlightning.training.hangs import HangTimeout


@dataclass
class Clock:
    now: float = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hangs.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(hangs, "_progress", hangs._Progress())
    return clock


def test_only_time_within_training_and_testing_counts(clock: Clock) -> None:
    trainer: Any = None
    timeout = HangTimeout(60.0)
    timeout.on_validation_start()
    assert hangs.idle() == -math.inf, "a validation of its own is not watched"
    timeout.on_train_start()
    clock.now = 110.0
    assert hangs.idle() == 10.0
    timeout.on_validation_batch_end()
    assert hangs.idle() == 0.0
    timeout.on_train_end()
    clock.now = 210.0
    assert hangs.idle() == 100 / hangs.SLOW_FACTOR, "the best weights are loaded"
    timeout.on_test_start()
    clock.now = 220.0
    assert hangs.idle() == 10.0
    timeout.on_exception(trainer, None, KeyboardInterrupt())
    assert hangs.idle() == -math.inf


def test_writing_a_checkpoint_may_take_ten_times_as_long(clock: Clock) -> None:
    HangTimeout(60.0).on_train_start()
    with hangs.slow():
        clock.now = 200.0
        assert hangs.idle() == 100 / hangs.SLOW_FACTOR, "a disk may be dead"
    clock.now = 205.0
    assert hangs.idle() == 5.0
