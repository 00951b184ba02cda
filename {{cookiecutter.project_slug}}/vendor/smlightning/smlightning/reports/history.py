"""The metrics of a run in rows: what its log prints, its curves show and a checkpoint holds."""

from collections.abc import Mapping

Row = dict[str, float]


class MetricHistory:
    """One row for each step of training: ``step``, ``epoch`` and every metric."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._stage = "fit"
        self._epoch = 0

    def begin(self, stage: str) -> None:
        """Metrics that follow are of this stage: fit, validate or test."""
        self._stage = stage

    def restore(self, rows: list[Row]) -> None:
        """Go on after the rows of a checkpoint."""
        self.rows = rows

    def add(self, metrics: Mapping[str, float], step: int) -> Row:
        """Keep metrics for the curves; returns them after their ``step`` and ``epoch``.

        Args:
            step: as Lightning counts. In training that is the number of steps before the one that
                the metrics are of; afterwards it is the number of all steps.
        """
        self._epoch = int(metrics.get("epoch", self._epoch))
        is_training = int(self._stage == "fit")
        position: Row = {"step": step + is_training, "epoch": self._epoch + is_training}
        values = {
            name: float(value) for name, value in metrics.items() if name not in ("step", "epoch")
        }
        if self._stage != "validate":  # which has nothing to do with the curves of training
            self._keep(position, values)
        return {**position, **values}

    def _keep(self, position: Row, values: Row) -> None:
        if not self.rows or self.rows[-1]["step"] != position["step"]:
            self.rows.append(dict(position))
        self.rows[-1].update(values)
