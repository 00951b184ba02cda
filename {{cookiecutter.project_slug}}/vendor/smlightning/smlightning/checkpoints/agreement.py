"""The ranks agree between batches whether to stop, to save, or to leave."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch

from smlightning.cluster import collectives

SECONDS = 0.3  # about how often they agree


@dataclass(frozen=True)
class Votes:
    """What a rank wants; as an answer, what any of them does."""

    stop: bool = False  # a signal told it so
    save: bool = False  # a checkpoint is due
    leave: bool = False  # a checkpoint could not be written


@dataclass
class _Interval:
    """How many batches lie between two questions in one stage: training, validation or test."""

    batches: int = 1
    left: int = 1  # until the next question
    since: float = field(default_factory=time.monotonic)  # the last one


class Agreement:
    """Asks all ranks, after as many batches as take about SECONDS.

    All ranks count the same batches, and derive from the same sums after how many to ask again.
    """

    def __init__(self) -> None:
        self._intervals: dict[Any, _Interval] = {}

    def ask(self, trainer: pl.Trainer, votes: Votes) -> Votes:
        """What any rank votes for; nothing where it is not yet time to ask.

        Collective, each batch.
        """
        interval = self._intervals.setdefault(trainer.state.stage, _Interval())
        interval.left -= 1
        if interval.left > 0:
            return Votes()
        answer = votes
        if trainer.world_size > 1:
            answer, seconds = _sum(trainer, votes, time.monotonic() - interval.since)
            interval.batches = _fitting(interval.batches, seconds / trainer.world_size)
        interval.left = interval.batches
        interval.since = time.monotonic()
        return answer


def _sum(trainer: pl.Trainer, votes: Votes, seconds: float) -> tuple[Votes, float]:
    """What any rank votes for, and the sum of the ranks' seconds."""
    values = [float(votes.stop), float(votes.save), float(votes.leave), seconds]
    device = trainer.strategy.root_device
    stop, save, leave, total = collectives.all_sum(torch.tensor(values, device=device)).tolist()
    return Votes(stop > 0, save > 0, leave > 0), total


def _fitting(batches: int, seconds: float) -> int:
    """How many batches take about SECONDS, where these took ``seconds``; at most twice as many."""
    fitting = int(SECONDS * batches / max(seconds, 1e-6))
    return max(1, min(fitting, 2 * batches))
