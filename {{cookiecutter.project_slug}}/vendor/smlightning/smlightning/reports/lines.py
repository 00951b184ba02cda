"""The logger whose lines are the log of a job: ``step=… epoch=… val/loss=…``."""

import sys
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from smlightning.reports.history import MetricHistory
from smlightning.reports.log import format_metrics


class LogLines(Logger):
    """Prints whatever is logged, a line for each call, and adds it to the run's history.

    Lightning's CSVLogger neither prints nor continues its rows after a resume.
    """

    name = "lines"
    version = 0

    def __init__(self, history: MetricHistory) -> None:
        super().__init__()
        self.history = history
        self._warned = False  # of a train/loss that the model logs, too

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Print a line, and keep it for the curves; ``step`` is as Lightning counts."""
        if not metrics.keys() - {"step", "epoch"}:
            return
        self._warn_of_models_loss(metrics)
        print(format_metrics(self.history.add(metrics, step or 0)), flush=True)

    def _warn_of_models_loss(self, metrics: dict[str, float]) -> None:
        """The interval's mean is logged with samples_per_second; any other one is the model's."""
        is_models = "train/loss" in metrics and "samples_per_second" not in metrics
        if is_models and not self._warned:
            self._warned = True
            print(
                "warning: the model logs a train/loss beside the interval's mean, which is logged "
                "for it; give the model's own another name",
                file=sys.stderr,
            )

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing; abstract in Logger."""
