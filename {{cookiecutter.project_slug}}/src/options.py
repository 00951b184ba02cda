"""What a run measures, and which of it says that a model is best.

Nothing heavy is imported: the launcher reads this file to learn which metrics a job prints.
"""

from typing import Literal

METRICS = (
    "train/loss",
    "val/loss",
    "val/accuracy",
    "val/macro_f1",
    "test/loss",
    "test/accuracy",
    "test/macro_f1",
    "lr",
    "samples_per_second",
)
"""Every metric that a run prints; the launcher turns each into a SageMaker metric definition."""

MONITOR = "val/accuracy"
"""The validation metric whose best value marks the best weights; a run ends with the same metric of the test set."""

MODE: Literal["max", "min"] = "max"
"""Whether the highest or the lowest value of MONITOR is best."""
