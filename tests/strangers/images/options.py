"""Options of a small image classifier."""

from dataclasses import dataclass
from typing import Literal

from runtime.command_line import (
    NonNegativeFloat,
    NonNegativeInt,
    OrMinusOne,
    PositiveFloat,
    PositiveInt,
    Seed,
    option,
    shared,
)


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
        "training", "a folder with images.npy and labels.npy; training: the job's channel of that name"
    )
    batch_size: PositiveInt = option(32, "images per rank and step", resume="free")
    seed: Seed = option(0, "determines splits, order and initial weights")


@dataclass(frozen=True)
class TrainingOptions:
    """What `train.train` gives to the Trainer and its callbacks."""

    epochs: PositiveInt = option(6, "passes over the training data")
    max_steps: OrMinusOne = option(-1, "stop after this many optimizer steps; -1: no limit, epochs decide")
    seed: Seed = shared(DataOptions.seed)
    accumulate_grad_batches: PositiveInt = option(1, "batches per rank and optimizer step", resume="free")
    gradient_clip_val: NonNegativeFloat = option(1.0, "largest norm of the gradient; 0: no clipping")
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = option(
        "auto", "auto: bf16-mixed on GPUs that support it, else 32-true"
    )
    output_dir: str = option("outputs", "folder of all results; on SageMaker its own folders", resume="free")
    resume: str = option(
        "auto", "auto (where an unfinished run of these options stopped), never, or a checkpoint's path", resume="free"
    )
    checkpoint_minutes: PositiveFloat = option(
        5.0, "between two checkpoints; an epoch's end and a stop signal make one anyway", resume="free"
    )
    checkpoint_steps: NonNegativeInt = option(0, "steps between two checkpoints; 0: by minutes alone", resume="free")
    hang_seconds: PositiveFloat = option(
        60.0, "hang timeout; after 60 % of it the stalled rank is reported and the job is aborted", resume="free"
    )
    log_every: PositiveInt = option(50, "optimizer steps between two lines of the log", resume="free")


OPTIONS = (DataOptions, ModelOptions, TrainingOptions)
"""The classes whose options make the command line, in the order of `--help`; no name may occur twice."""

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
