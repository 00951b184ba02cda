"""The logger that prints a job's log, ``step=… epoch=… val/loss=…``, and keeps its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from smlightning.reports.log import as_number, format_metrics

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


class LogLines(TensorBoardLogger):
    """TensorBoard's logger, which also prints a line for each call of the log and adds it to the
    run's history.

    It is the first of a run's loggers. So ``self.logger.experiment`` is TensorBoard's writer, and
    what Lightning names after the first logger, such as ``trainer.log_dir`` and the files of
    profilers and of a ModelCheckpoint without a folder, lies below the outputs.

    Args:
        history: the rows of the curves.
        outputs: the folder of TensorBoard's folder.
    """

    def __init__(self, history: MetricHistory, outputs: Path) -> None:
        super().__init__(outputs, name="tensorboard", version="")
        self.history = history

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Print a line, and keep it for the curves; ``step`` is as Lightning counts."""
        numbers = {name: as_number(value) for name, value in metrics.items()}
        known = {name: number for name, number in numbers.items() if number is not None}
        if known.keys() - {"hp_metric"}:  # else TensorBoard's mark of hyperparameters
            print(format_metrics(self.history.add(known, step or 0)), flush=True)
        others = {name: value for name, value in metrics.items() if name not in known}
        given = {name: value for name, value in others.items() if value is not None}
        super().log_metrics({**known, **given}, step)
