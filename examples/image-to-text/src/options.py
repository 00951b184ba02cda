"""Options of image to text; the metrics of a run, and which one is monitored."""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import NonNegativeFloat, OrMinusOne, PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "receipts",
        "receipts (generated), training (the channel), a folder with metadata.jsonl, or a hub name",
        resume="data",
    )
    batch_size: PositiveInt = option(16, "documents per rank and step", resume="free")
    num_workers: OrMinusOne = option(-1, "per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")
    num_receipts: PositiveInt = option(4000, "receipts to generate for training", resume="data")
    model_name: str = option(
        "tiny", "tiny, or a Hugging Face vision encoder-decoder by name or path", resume="data"
    )
    height: PositiveInt = option(48, "of an image, in pixels", resume="data")
    width: PositiveInt = option(128, "of an image, in pixels", resume="data")
    max_length: PositiveInt = option(64, "tokens of a text at most", resume="data")
    lr: PositiveFloat = option(1e-3, "highest learning rate; to fine-tune 3e-5", resume="optimizer")
    weight_decay: NonNegativeFloat = option(0.01, "of AdamW, on matrices only", resume="optimizer")
    epochs: PositiveInt = option(10, "passes over the training data", resume="path")


METRICS = (
    "train/loss", "val/loss", "val/exact_match", "test/loss", "test/exact_match", "lr",
    "samples_per_second", "data_wait",
)  # fmt: skip
MONITOR = "val/loss"  # exact_match is 0 for long, and then the first weights would stay the best
MODE: Literal["max", "min"] = "min"
SAMPLE = {"company": "NORTH BAKERY", "date": "24/12/2025", "total": "17.50"}
"""The receipt that `predict.py --sample` draws and reads."""
