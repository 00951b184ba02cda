"""Options of a small image classifier."""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import NonNegativeFloat, PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "training",
        "a folder with images.npy and labels.npy; training: the job's channel of that name",
        resume="data",
    )
    batch_size: PositiveInt = option(32, "images per rank and step", resume="free")
    channels: PositiveInt = option(8, "feature maps of the first convolution", resume="optimizer")
    lr: PositiveFloat = option(0.1, "learning rate of SGD", resume="optimizer")
    momentum: NonNegativeFloat = option(0.9, "of SGD", resume="optimizer")


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
