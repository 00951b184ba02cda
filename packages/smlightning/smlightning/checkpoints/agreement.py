"""The ranks agree between batches whether to stop, to save, or to leave."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch

from smlightning.cluster import collectives, signals

SECONDS = 0.3  # about how often they agree


@dataclass
class _Interval:
    """Number of batches between two agreements in one stage: training, validation or test."""

    batches: int = 1
    left: int = 1  # until the next question
    since: float = field(default_factory=time.monotonic)  # the last one


class Agreement:
    """Asks all ranks, after as many batches as take about SECONDS.

    All ranks count the same batches, and derive from the same sums after how many to ask again.

    Args:
        minutes: between two checkpoints.

    Attributes:
        stop: a rank got a signal.
        save: a checkpoint is due.
    """

    def __init__(self, minutes: float) -> None:
        self.seconds = 60 * minutes
        self.stop = self.save = False
        self._saved_at = time.monotonic()
        self._intervals: dict[Any, _Interval] = {}

    def saved(self) -> None:
        """The next checkpoint is due after as many minutes again."""
        self.save, self._saved_at = False, time.monotonic()

    def ask(self, trainer: pl.Trainer, has_failed: bool) -> bool:
        """Whether any rank has failed to write a checkpoint; also updates ``stop`` and ``save``.

        Collective, each batch. False if it is not yet time to ask.
        """
        interval = self._intervals.setdefault(trainer.state.stage, _Interval())
        interval.left -= 1
        if interval.left > 0:
            return False
        now = time.monotonic()
        is_late = trainer.is_global_zero and now - self._saved_at > self.seconds
        votes = [signals.requested(), is_late, has_failed]
        values = [*map(float, votes), now - interval.since]
        sums = collectives.all_sum(torch.tensor(values, device=trainer.strategy.root_device))
        stop, save, failed, seconds = sums.tolist()
        if trainer.world_size > 1:
            interval.batches = _fitting(interval.batches, seconds / trainer.world_size)
        interval.left = interval.batches
        interval.since = time.monotonic()
        self.stop = self.stop or stop > 0
        self.save = self.save or save > 0
        return failed > 0


def _fitting(batches: int, seconds: float) -> int:
    """Number of batches that take about SECONDS, from the time of these; at most twice as many."""
    fitting = int(SECONDS * batches / max(seconds, 1e-6))
    return max(1, min(fitting, 2 * batches))
