"""Options of a table's network; the metrics of a run, and which one is monitored."""

from dataclasses import dataclass
from typing import Literal

from smlightning.errors import UserError
from smlightning.options import NonNegativeFloat, PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    """Lists of columns have commas, as in ``--numbers age,distance``."""

    # data
    dataset: str = option(
        "offers",
        "offers (built in: used bicycles), training (the channel), or a path (csv, parquet, …)",
        resume="data",
    )
    target: str = option("price", "name of the column to predict", resume="data")
    task: Literal["regression", "classification"] = option(
        "regression", "whether the target is a number or a class", resume="data"
    )
    numbers: str = option("age,distance", "names of the columns of numbers", resume="data")
    texts: str = option("kind,title", "names of the columns of text or classes", resume="data")
    batch_size: PositiveInt = option(64, "rows per rank and step", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")
    # model
    hidden: PositiveInt = option(64, "width of the network", resume="data")
    buckets: PositiveInt = option(4096, "rows of the table of words", resume="data")
    lr: PositiveFloat = option(3e-3, "highest learning rate", resume="optimizer")
    weight_decay: NonNegativeFloat = option(0.01, "weight decay of AdamW", resume="optimizer")
    # training
    epochs: PositiveInt = option(20, "passes over the training data", resume="path")

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = [*names(self.numbers), *names(self.texts)]
        if not columns:
            raise UserError("--numbers and --texts are empty", "give at least one column")
        named = [*columns, self.target]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise UserError(f"column {twice[0]!r} occurs twice", "list each column once")


def names(option: str) -> list[str]:
    """Names with commas between them, without blanks around them."""
    return [name.strip() for name in option.split(",") if name.strip()]


METRICS = (
    "train/loss", "val/loss", "val/error", "test/loss", "test/error", "lr", "samples_per_second",
    "data_wait",
)  # fmt: skip
MONITOR = "val/error"  # mean absolute error in the target's unit; share of wrong classes
MODE: Literal["max", "min"] = "min"
SAMPLE = '{"age": "4", "distance": "1200", "kind": "tandem", "title": "good brakes"}'
"""The row of `predict.py --sample`."""
