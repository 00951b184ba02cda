"""The logger that prints a job's log, ``step=… epoch=… val/loss=…``, and keeps its metrics."""

from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from smlightning.reports.log import format_metrics

Row = dict[str, float]


class MetricHistory:
    """One row for each step of training: ``step``, ``epoch`` and every metric.

    Attributes:
        rows: a checkpoint holds them, and the curves show them.
        epoch: Lightning's, from 0, of metrics that come without one, as LearningRateMonitor's do.
        stage: ``fit``, ``validate`` or ``test``: the stage of the metrics that follow.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.stage = "fit"
        self.epoch = 0

    def add(self, metrics: Mapping[str, float], step: int) -> Row:
        """Keep metrics for the curves; returns them, with ``step`` and ``epoch`` first.

        Args:
            step: as Lightning counts: in training, the number of steps before the step of the
                metrics; afterwards, the number of all steps.
        """
        self.epoch = int(metrics.get("epoch", self.epoch))
        is_training = int(self.stage == "fit")
        position: Row = {"step": step + is_training, "epoch": self.epoch + is_training}
        values = {name: float(value) for name, value in metrics.items() if name not in position}
        if self.stage != "validate":  # the curves leave out a validation after training
            if not self.rows or self.rows[-1]["step"] != position["step"]:
                self.rows.append(dict(position))
            self.rows[-1].update(values)
        return {**position, **values}


class LogLines(Logger):
    """Prints a line for each call of the log, and adds it to the run's history.

    Lightning's CSVLogger neither prints nor continues its rows after a resume.
    """

    name = "lines"
    version = 0

    def __init__(self, history: MetricHistory) -> None:
        super().__init__()
        self.history = history

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Print a line, and keep it for the curves; ``step`` is as Lightning counts."""
        print(format_metrics(self.history.add(metrics, step or 0)), flush=True)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Does nothing; abstract in Logger."""
