"""Options of chemprop's network; the metrics of a run, and which one is monitored."""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "chains",
        "chains (built in: short molecules, their masses), training (the channel), or a csv",
        resume="data",
    )
    batch_size: PositiveInt = option(16, "molecules per rank and step", resume="free")
    smiles_column: str = option("smiles", "name of the column of SMILES", resume="data")
    target_column: str = option("target", "name of the column of numbers", resume="data")
    hidden: PositiveInt = option(64, "width of the network", resume="data")
    depth: PositiveInt = option(3, "rounds of messages between bonds", resume="data")
    lr: PositiveFloat = option(1e-2, "highest learning rate", resume="optimizer")
    epochs: PositiveInt = option(20, "passes over the training data", resume="path")


METRICS = (
    "train/loss", "train_loss_step", "train_loss_epoch", "val_loss", "val/rmse", "val/mae",
    "test/rmse", "test/mae", "lr", "samples_per_second", "data_wait",
)  # fmt: skip
MONITOR = "val/rmse"  # in standard deviations of the training data; the test's in its unit
MODE: Literal["max", "min"] = "min"
SAMPLE = "CCO"  # the molecule of `predict.py --sample`: ethanol
