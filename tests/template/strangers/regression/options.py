"""Options of a regression: the last column of a csv file of numbers from the others."""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "training",
        "a csv file of numbers, or a folder with one; training: the job's channel of that name",
        resume="data",
    )
    batch_size: PositiveInt = option(32, "rows per rank and step", resume="free")
    width: PositiveInt = option(16, "hidden units", resume="optimizer")
    lr: PositiveFloat = option(0.02, "learning rate of Adam", resume="optimizer")


METRICS = ("train/loss", "val/rmse", "val/mae", "test/rmse", "test/mae")
MONITOR = "val/rmse"
MODE: Literal["max", "min"] = "min"
SAMPLE = "0.5,-1.0,0.25,2.0"
