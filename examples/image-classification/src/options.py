"""Options of image classification; the metrics of a run, and which one is monitored."""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import NonNegativeFloat, OrMinusOne, PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "letters",
        "letters (built in), training (the channel), a folder of images or parquet, or a hub name",
        resume="data",
    )
    batch_size: PositiveInt = option(32, "images per rank and step", resume="free")
    num_workers: OrMinusOne = option(-1, "per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")
    model_name: str = option(
        "resnet", "resnet, or a Hugging Face image classifier by name or path", resume="data"
    )
    image_size: PositiveInt = option(32, "pixels; checkpoints often want 224", resume="data")
    rotation: NonNegativeFloat = option(10.0, "augmentation: degrees at most", resume="data")
    shift: NonNegativeFloat = option(
        0.1, "augmentation: at most so much of width and height", resume="data"
    )
    flip: bool = option(False, "augmentation: mirror half of the images", resume="data")
    lr: PositiveFloat = option(2e-3, "highest learning rate; to fine-tune 5e-5", resume="optimizer")
    weight_decay: NonNegativeFloat = option(0.01, "of AdamW, on matrices only", resume="optimizer")
    epochs: PositiveInt = option(20, "passes over the training data", resume="path")


METRICS = (
    "train/loss", "val/loss", "val/accuracy", "test/loss", "test/accuracy", "lr",
    "samples_per_second", "data_wait",
)  # fmt: skip
MONITOR = "val/accuracy"
MODE: Literal["max", "min"] = "max"
SAMPLE = "R"  # the letter that `predict.py --sample` draws and classifies
