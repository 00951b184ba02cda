"""Every option of model, data and training; the metrics of a run, and which one is monitored.

An option is a typed field with a default and an explanation. It becomes `--name` on the command
line and a hyperparameter in job.toml; `Model` and `Data` read it as `self.options.name`. `resume`
says whether a run may resume with another value: see `option` in smlightning/options.py.
`__post_init__` rejects values that conflict, before a job is paid for. The launcher reads this
file, too, so it imports nothing heavy.
"""

from dataclasses import dataclass
from typing import Literal

from smlightning.errors import UserError
from smlightning.options import (
    NonNegativeFloat,
    NonNegativeInt,
    OrMinusOne,
    PositiveFloat,
    PositiveInt,
    Ratio,
    option,
)
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class Options(TrainerOptions):
    """Options of this project and of every project (TrainerOptions).

    A field with the name of one of TrainerOptions replaces it, for example with another default. If
    its type allows more, as a Literal with another choice, end its line with
    `# type: ignore[assignment]`: mypy rejects it otherwise.
    """

    # data
    dataset: str = option(
        "stdlib",
        "stdlib (built in), training (the channel), a hub name, or a path (txt, csv, jsonl, …)",
        resume="data",
    )
    batch_size: PositiveInt = option(
        8,
        "windows per rank and step; global batch: this × world size × accumulate_grad_batches",
        resume="free",
    )
    text_column: str = option(
        "", "name of the text column; empty: found by its usual names", resume="data"
    )
    num_workers: OrMinusOne = option(-1, "per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")
    # model
    model_name: str = option(
        "bytelm", "bytelm, or a Hugging Face causal model by name or path", resume="data"
    )
    max_length: PositiveInt = option(256, "tokens of a window of text", resume="data")
    prompt_column: str = option(
        "", "name of the column of prompts; the text column then has the answers", resume="data"
    )
    layers: PositiveInt = option(3, "layers of bytelm", resume="optimizer")
    width: PositiveInt = option(
        96, "width of bytelm: numbers per token, a multiple of heads", resume="optimizer"
    )
    heads: PositiveInt = option(4, "attention heads of bytelm", resume="optimizer")
    dropout: Ratio = option(
        0.0, "share of activations of bytelm that training sets to zero", resume="optimizer"
    )
    lr: PositiveFloat = option(
        3e-3, "highest learning rate; to fine-tune 5e-5, with LoRA 2e-4", resume="optimizer"
    )
    weight_decay: NonNegativeFloat = option(
        0.1, "weight decay of AdamW, only for matrices", resume="optimizer"
    )
    warmup_ratio: Ratio = option(0.05, "share of steps in which lr rises", resume="path")
    lora_rank: NonNegativeInt = option(
        0, "rank of LoRA on a Hugging Face model; 0: train all of its weights", resume="data"
    )
    merge: bool = option(False, "with LoRA: save the whole model, merged", resume="free")
    compile: bool = option(False, "torch.compile the network", resume="free")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, more time", resume="free"
    )
    # training
    epochs: PositiveInt = option(1, "passes over the training data", resume="path")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset == "stdlib" and (self.prompt_column or self.text_column):
            problem = "--prompt_column and --text_column are for tables, and --dataset is stdlib"
            raise UserError(problem, "leave them out, or name a table")
        leave_out = "leave it out, or choose another --model_name"
        if self.model_name == "bytelm":
            if self.lora_rank:
                problem = "--lora_rank is for Hugging Face models; bytelm is trained whole"
                raise UserError(problem, leave_out)
            if self.width % self.heads:
                problem = f"--width {self.width} is not a multiple of --heads {self.heads}"
                raise UserError(problem, "choose one that is")
            return
        for name in ("layers", "width", "heads", "dropout"):
            if getattr(self, name) != getattr(Options, name):
                problem = f"--{name} is for bytelm; {self.model_name!r} has its own"
                raise UserError(problem, leave_out)


METRICS = (
    "train/loss", "val/loss", "val/bits_per_byte", "test/loss", "test/bits_per_byte", "lr",
    "samples_per_second", "data_wait",
)  # fmt: skip
"""Metrics that a run prints; the launcher makes each of them a SageMaker metric."""

MONITOR = "val/bits_per_byte"
"""The validation metric that chooses the best weights; a run prints the test's last."""

MODE: Literal["max", "min"] = "min"
"""Whether the highest or the lowest value of MONITOR is best."""

SAMPLE = "def main("
"""The text of `predict.py --sample`; the rehearsal continues it with its trained model."""
