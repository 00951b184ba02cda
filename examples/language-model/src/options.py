"""Options of the language model; the metrics of a run, and which one is monitored."""

from dataclasses import dataclass
from typing import Literal

from smlightning.errors import UserError
from smlightning.options import NonNegativeFloat, OrMinusOne, PositiveFloat, PositiveInt, option
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    dataset: str = option(
        "stdlib",
        "stdlib (built in), training (the channel), a folder of txt, csv, json or parquet files, "
        "or a hub name",
        resume="data",
    )
    text_column: str = option("text", "name of the text column", resume="data")
    batch_size: PositiveInt = option(8, "windows of text per rank and step", resume="free")
    num_workers: OrMinusOne = option(-1, "per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")
    model_name: str = option(
        "tiny", "tiny, or a Hugging Face causal language model by name or path", resume="data"
    )
    max_length: PositiveInt = option(256, "tokens of a window of text", resume="data")
    layers: PositiveInt = option(3, "layers of tiny", resume="optimizer")
    width: PositiveInt = option(128, "width of tiny, a multiple of 8", resume="optimizer")
    lr: PositiveFloat = option(3e-3, "highest learning rate; to fine-tune 5e-5", resume="optimizer")
    weight_decay: NonNegativeFloat = option(0.1, "of AdamW, on matrices only", resume="optimizer")
    compile: bool = option(False, "torch.compile the network", resume="free")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, more time", resume="free"
    )
    epochs: PositiveInt = option(1, "passes over the training data", resume="path")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 8:
            problem = f"--width {self.width} is not a multiple of 8, two for each of four heads"
            raise UserError(problem, "choose one that is")


METRICS = ("train/loss", "val/loss", "test/loss", "lr", "samples_per_second", "data_wait")
MONITOR = "val/loss"
MODE: Literal["max", "min"] = "min"
SAMPLE = "def main("
"""The text that `predict.py --sample` continues."""
