"""A hang is a time without a mark; time in which a checkpoint is written counts less."""

from dataclasses import dataclass
from typing import Any

import pytest

from smlightning.cluster import ending, watch
from smlightning.cluster.ending import RankOutcome
from smlightning.training import hangs
from smlightning.training.hangs import HangTimeout


@dataclass
class Clock:
    """The time, and the timeout with which a process would have ended."""

    now: float = 100.0
    ended: str = ""

    def ended_after(self, seconds: float) -> str:
        self.now += seconds
        self.ended = ""
        watch._check_progress(0)
        return self.ended

    def end(self, outcome: RankOutcome) -> None:
        self.ended = outcome.problem


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(watch, "state", watch.State(hang_seconds=60.0))
    monkeypatch.setattr(watch.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(ending, "exit_now", clock.end)
    return clock


def test_only_time_within_training_and_testing_counts(clock: Clock) -> None:
    trainer: Any = None
    timeout = HangTimeout(60.0)
    timeout.on_validation_start()
    assert not clock.ended_after(1000), "a validation of its own is not watched"
    timeout.on_train_start()
    assert not clock.ended_after(50)
    timeout.on_validation_batch_end()
    assert not clock.ended_after(50)
    assert clock.ended_after(11) == "no progress for 60 s"
    timeout.on_train_end()
    assert not clock.ended_after(590), "the best weights are loaded"
    assert clock.ended_after(11) == "no progress for 600 s"
    timeout.on_test_start()
    assert not clock.ended_after(59)
    assert clock.ended_after(2)
    timeout.on_exception(trainer, None, KeyboardInterrupt())
    assert not clock.ended_after(1000)


def test_writing_a_checkpoint_may_take_ten_times_as_long(clock: Clock) -> None:
    HangTimeout(60.0).on_train_start()
    with hangs.slow():
        assert not clock.ended_after(590)
        assert clock.ended_after(11) == "no progress for 600 s", "a disk may be dead"
    assert not clock.ended_after(59)
    assert clock.ended_after(2) == "no progress for 60 s"
