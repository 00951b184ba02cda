"""The ranks agree between batches whether to stop, to save, or to leave."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch

from smlightning.cluster import collectives

SECONDS = 0.3  # about how often they agree


@dataclass(frozen=True)
class Wishes:
    """What a rank wants; as an answer, what any of them does."""

    stop: bool = False  # a signal told it so
    save: bool = False  # a checkpoint is due
    leave: bool = False  # a checkpoint could not be written


@dataclass
class _Pace:
    """How many batches lie between two questions in one stage: training, validation or test."""

    batches: int = 1
    left: int = 1  # until the next question
    since: float = field(default_factory=time.monotonic)  # the last one


class Agreement:
    """Asks all ranks, after as many batches as take about SECONDS.

    All ranks count the same batches, and derive from the same sums after how many to ask again.
    """

    def __init__(self) -> None:
        self._paces: dict[Any, _Pace] = {}

    def ask(self, trainer: pl.Trainer, wishes: Wishes) -> Wishes:
        """What any rank wishes; nothing where it is not yet time to ask. Collective, each batch."""
        pace = self._paces.setdefault(trainer.state.stage, _Pace())
        pace.left -= 1
        if pace.left > 0:
            return Wishes()
        answer = wishes
        if trainer.world_size > 1:
            answer, seconds = _sum(trainer, wishes, time.monotonic() - pace.since)
            pace.batches = _fitting(pace.batches, seconds / trainer.world_size)
        pace.left = pace.batches
        pace.since = time.monotonic()
        return answer


def _sum(trainer: pl.Trainer, wishes: Wishes, seconds: float) -> tuple[Wishes, float]:
    """What any rank wishes, and the sum of the ranks' seconds."""
    values = [float(wishes.stop), float(wishes.save), float(wishes.leave), seconds]
    device = trainer.strategy.root_device
    stop, save, leave, total = collectives.all_sum(torch.tensor(values, device=device)).tolist()
    return Wishes(stop > 0, save > 0, leave > 0), total


def _fitting(batches: int, seconds: float) -> int:
    """How many batches take about SECONDS, where these took ``seconds``; at most twice as many."""
    fitting = int(SECONDS * batches / max(seconds, 1e-6))
    return max(1, min(fitting, 2 * batches))
