"""The best validation so far, as a value."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from smlightning.checkpoints.position import Position
from smlightning.errors import UserError
from smlightning.project import check_monitor_name


@dataclass(frozen=True)
class Best:
    """The best validation so far, by one of its metrics."""

    monitor: str  # the metric
    mode: Literal["max", "min"]  # which of its values is best
    score: float | None = None  # None: no validation gave a finite one yet
    step: int = 0  # global batches before it
    epoch: int = 0  # of it, from 1

    def __post_init__(self) -> None:
        check_monitor_name(self.monitor)
        if self.mode not in ("max", "min"):
            raise UserError(
                f"MODE is {self.mode!r}; expected 'max' or 'min'",
                f"write 'max' if a higher {self.monitor} is better, else 'min'",
            )

    def __str__(self) -> str:
        score = math.nan if self.score is None else self.score
        return f"{self.criterion}: {score:.6g}, after step {self.step} in epoch {self.epoch}"

    @property
    def criterion(self) -> str:
        return f"{self.mode} {self.monitor}"

    def after(self, score: float, position: Position) -> "Best":
        """The best after a validation with this score: itself, unless the score is better."""
        sign = 1 if self.mode == "max" else -1
        is_better = self.score is None or sign * score > sign * self.score
        if not math.isfinite(score) or not is_better:
            return self
        return replace(self, score=score, step=position.step, epoch=position.epoch + 1)
