"""Options of a library's model; names.py has the metrics that it logs."""

from dataclasses import dataclass
from typing import Literal

from names import LOGGED, MONITOR

from smlightning.options import PositiveInt, option
from smlightning.training.options import TrainerOptions

__all__ = ["METRICS", "MODE", "MONITOR", "SAMPLE", "Options"]


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option("small", "made in code, or the library's own", resume="data")
    batch_size: PositiveInt = option(8, "samples per rank and step", resume="free")
    epochs: PositiveInt = option(3, "passes over the training data", resume="path")


METRICS = (*LOGGED, "train/loss", "lr", "samples_per_second", "data_wait")
MODE: Literal["max", "min"] = "min"
SAMPLE = "the first batch of the test"
