"""Options of a byte language model.

The rest of the project's own options.py stays as it is.
"""

from dataclasses import dataclass
from typing import Literal

from options import TrainingOptions  # of the project's own
from smlightning.options import PositiveFloat, PositiveInt, Seed, option, shared


@dataclass(frozen=True)
class ModelOptions:
    """What `model.Model` takes."""

    width: PositiveInt = option(32, "units of the recurrent layer")
    lr: PositiveFloat = option(0.01, "learning rate of AdamW", resume="optimizer")


@dataclass(frozen=True)
class DataOptions:
    """What `data.Data` takes."""

    RESUME = "data"

    dataset: str = option(
        "training",
        "a text file, or a folder that holds one; training: the job's channel of that name",
    )
    batch_size: PositiveInt = option(32, "windows per rank and step", resume="free")
    window: PositiveInt = option(32, "bytes that each window predicts")
    seed: Seed = shared(TrainingOptions.seed)


METRICS = ("train/loss", "val/loss", "val/perplexity", "test/perplexity")
MONITOR = "val/perplexity"
MODE: Literal["max", "min"] = "min"
SAMPLE = "to be or "
