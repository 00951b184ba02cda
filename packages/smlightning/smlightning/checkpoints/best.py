"""The best validation so far, as a value."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from smlightning.checkpoints.position import Position
from smlightning.errors import UserError
from smlightning.options import check_monitor_name

# Last words of metrics' names, and words that reverse their meaning.
LOWER_IS_BETTER = {
    "loss", "error", "perplexity", "mse", "rmse", "mae", "mape", "wer", "cer", "nll", "fid",
}  # fmt: skip
HIGHER_IS_BETTER = {
    "accuracy", "acc", "f1", "auc", "auroc", "bleu", "rouge", "iou", "miou", "dice", "precision",
    "recall", "r2", "ndcg", "psnr", "ssim",
}  # fmt: skip
SIGNED = {"neg", "negative", "minus", "inverse"}


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
        word = re.split("[/_]", self.monitor.lower())
        wrong = {"max": LOWER_IS_BETTER, "min": HIGHER_IS_BETTER}[self.mode]
        if word[-1] in wrong and not set(word) & SIGNED:
            raise UserError(
                f"MODE is {self.mode!r}, so the weights with the "
                f"{'highest' if self.mode == 'max' else 'lowest'} {self.monitor} would be kept",
                f"set MODE to {'min' if self.mode == 'max' else 'max'!r} in src/options.py; if "
                f"{self.mode!r} is right, log the metric as "
                f"{self.monitor.rpartition('/')[0] or 'val'}/negative_{word[-1]}",
            )

    def check_metric(self, metric: Any) -> None:
        """Raise a UserError if torchmetrics knows that the other ``mode`` is best.

        Args:
            metric: the torchmetrics object that the model logs as ``monitor``, or None.
        """
        higher = getattr(metric, "higher_is_better", None)
        right = "max" if higher else "min"
        if higher is not None and self.mode != right:
            raise UserError(
                f"MODE is {self.mode!r}, and {self.monitor} is torchmetrics' "
                f"{type(metric).__name__}, whose best value is the "
                f"{'highest' if higher else 'lowest'}",
                f"set MODE to {right!r} in src/options.py; if {self.mode!r} is right, log the "
                "metric's compute()",
            )

    def check_callbacks(self, callbacks: Iterable[Any]) -> None:
        """Raise a UserError if a callback takes the other ``mode`` of ``monitor`` for best."""
        for each in callbacks:
            mode = getattr(each, "mode", self.mode)
            is_same = getattr(each, "monitor", "") == self.monitor
            if is_same and mode in ("max", "min") and mode != self.mode:
                name = type(each).__name__
                raise UserError(
                    f"{name} has mode={mode!r} for {self.monitor}, and MODE is {self.mode!r}",
                    f"write {name}(MONITOR, mode=MODE, ...) in src/train.py",
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
