"""Options of a regression: the last column of a csv file of numbers from the others.

The rest of the project's own options.py stays as it is.
"""

from dataclasses import dataclass
from typing import Literal

from options import TrainingOptions  # of the project's own
from smlightning.options import PositiveFloat, PositiveInt, Seed, option, shared


@dataclass(frozen=True)
class ModelOptions:
    """What `model.Model` takes."""

    width: PositiveInt = option(16, "hidden units")
    lr: PositiveFloat = option(0.02, "learning rate of Adam", resume="optimizer")


@dataclass(frozen=True)
class DataOptions:
    """What `data.Data` takes."""

    RESUME = "data"

    dataset: str = option(
        "training",
        "a csv file of numbers, or a folder with one; training: the job's channel of that name",
    )
    batch_size: PositiveInt = option(32, "rows per rank and step", resume="free")
    seed: Seed = shared(TrainingOptions.seed)


METRICS = ("train/loss", "val/rmse", "val/mae", "test/rmse", "test/mae")
MONITOR = "val/rmse"
MODE: Literal["max", "min"] = "min"
SAMPLE = "0.5,-1.0,0.25,2.0"
