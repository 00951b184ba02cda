"""Options of a small image classifier.

The rest of the project's own options.py stays as it is.
"""

from dataclasses import dataclass
from typing import Literal

from options import TrainingOptions  # of the project's own
from smlightning.options import NonNegativeFloat, PositiveFloat, PositiveInt, Seed, option, shared


@dataclass(frozen=True)
class ModelOptions:
    """What `model.Model` takes."""

    channels: PositiveInt = option(8, "feature maps of the first convolution")
    lr: PositiveFloat = option(0.1, "learning rate of SGD", resume="optimizer")
    momentum: NonNegativeFloat = option(0.9, "of SGD", resume="optimizer")


@dataclass(frozen=True)
class DataOptions:
    """What `data.Data` takes."""

    RESUME = "data"

    dataset: str = option(
        "training",
        "a folder with images.npy and labels.npy; training: the job's channel of that name",
    )
    batch_size: PositiveInt = option(32, "images per rank and step", resume="free")
    seed: Seed = shared(TrainingOptions.seed)


METRICS = ("train/loss", "val/loss", "val/f1", "test/loss", "test/f1")
MONITOR = "val/f1"
MODE: Literal["max", "min"] = "max"
SAMPLE = (  # a cross, drawn
    "#.......",
    ".#....#.",
    "..#..#..",
    "...##...",
    "...##...",
    "..#..#..",
    ".#....#.",
    "#......#",
)
