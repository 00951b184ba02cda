"""Options of the VAE; the metrics of a run, and which one is monitored."""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Ratio,
    option,
)
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "windows.npz", "file of windows, or training: windows.npz of the channel", resume="data"
    )
    batch_size: PositiveInt = option(32, "windows per rank and step", resume="free")
    num_workers: NonNegativeInt = option(0, "per rank", resume="free")
    augment: bool = option(True, "shift windows, and change their loudness", resume="data")
    hidden: list[PositiveInt] = option([256, 128], "widths of the encoder's layers", resume="data")
    latent: PositiveInt = option(8, "numbers of a code", resume="data")
    beta: NonNegativeFloat = option(0.05, "weight of the KL divergence", resume="path")
    warmup_steps: PositiveInt = option(100, "steps in which this weight rises", resume="path")
    lr: PositiveFloat = option(2e-3, "highest learning rate", resume="optimizer")
    ema: Ratio = option(0.99, "decay of the average of the weights", resume="path")
    patience: PositiveInt = option(10, "validations without a better loss", resume="path")
    init_from: str = option("", "begin with the weights of this .ckpt", resume="data")
    # As train.py had them.
    epochs: PositiveInt = option(20, "passes over the training data", resume="path")
    seed: NonNegativeInt = option(1, "determines order, initial weights, dropout", resume="data")
    gradient_clip_val: NonNegativeFloat = option(0.5, "largest norm; 0: none", resume="path")
    log_every: PositiveInt = option(10, "optimizer steps between two log lines", resume="free")


METRICS = (
    "train/loss", "train/kl", "beta", "val/loss", "test/loss", "test/auroc", "lr",
    "samples_per_second", "data_wait",
)  # fmt: skip
MONITOR = "val/loss"
MODE: Literal["max", "min"] = "min"
SAMPLE = "4"  # turns of the shaft in the window that `predict.py --sample` draws
