"""Every option of model, data and training; what a run measures, and which metric is monitored.

An option is a typed field with a default and an explanation. It becomes `--name` on the command
line and is checked in job.toml's hyperparameters; `Model` and `Data` read it as
`self.options.name`. `resume` says whether a run may resume with another value: see `option` in
smlightning/options.py. `__post_init__` refuses values that do not go together, before a job is
paid for. Nothing heavy is imported, since the launcher reads this file, too.
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
    Seed,
    option,
    shared,
)
from smlightning.training.options import TrainerOptions


@dataclass(frozen=True)
class ModelOptions:
    """What `model.Model` takes."""

    RESUME = "optimizer"  # whose state has the old value, unless an option says otherwise

    model_name: str = option(
        "bytelm", "bytelm, or a Hugging Face causal model by name or path", resume="data"
    )
    max_length: PositiveInt = option(256, "tokens of a window", resume="data")
    prompt_column: str = option(
        "", "name of a column of prompts; the text column then holds the answers", resume="data"
    )
    layers: PositiveInt = option(3, "of bytelm")
    width: PositiveInt = option(96, "of bytelm: numbers per token, a multiple of heads")
    heads: PositiveInt = option(4, "of bytelm's attention")
    dropout: Ratio = option(0.0, "of bytelm: share of activations that training sets to zero")
    lr: PositiveFloat = option(3e-3, "highest learning rate; to fine-tune 5e-5, with LoRA 2e-4")
    weight_decay: NonNegativeFloat = option(0.1, "of AdamW, on matrices only")
    warmup_ratio: Ratio = option(0.05, "share of steps in which lr rises", resume="path")
    lora_rank: NonNegativeInt = option(
        0, "of LoRA beside a Hugging Face model, which alone is trained; 0: none", resume="data"
    )
    merge: bool = option(False, "save what LoRA trained merged into its model", resume="free")
    compile: bool = option(False, "torch.compile the network", resume="free")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, more time", resume="free"
    )

    def __post_init__(self) -> None:
        leave_out = "leave it out, or choose another --model_name"
        if self.model_name == "bytelm":
            if self.lora_rank:
                problem = "--lora_rank is for Hugging Face models; bytelm is trained whole"
                raise UserError(problem, leave_out)
            if self.width % self.heads:
                problem = f"--width {self.width} is no multiple of --heads {self.heads}"
                raise UserError(problem, "choose one that is")
            return
        for name in ("layers", "width", "heads", "dropout"):
            if getattr(self, name) != getattr(ModelOptions, name):
                problem = f"--{name} is for bytelm; {self.model_name!r} has its own"
                raise UserError(problem, leave_out)


@dataclass(frozen=True)
class TrainingOptions(TrainerOptions):
    """What `train.train` gives to the Trainer and its callbacks: TrainerOptions', and these.

    A field that has the name of one of TrainerOptions replaces it, as with another default.
    """

    epochs: PositiveInt = option(1, "passes over the training data", resume="path")


@dataclass(frozen=True)
class DataOptions:
    """What `data.Data` takes."""

    RESUME = "data"  # unless an option says otherwise: they decide which samples a step sees

    dataset: str = option(
        "stdlib",
        "stdlib (built in), training (the channel), a hub name, or a path (txt, csv, jsonl, …)",
    )
    model_name: str = shared(ModelOptions.model_name)  # its tokenizer encodes the texts
    max_length: PositiveInt = shared(ModelOptions.max_length)
    prompt_column: str = shared(ModelOptions.prompt_column)
    batch_size: PositiveInt = option(
        8,
        "windows per rank and step; global batch: this × world size × accumulate_grad_batches",
        resume="free",
    )
    text_column: str = option("", "name of the text column; empty: found by its usual names")
    seed: Seed = shared(TrainingOptions.seed)
    num_workers: OrMinusOne = option(-1, "per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")

    def __post_init__(self) -> None:
        if self.dataset == "stdlib" and (self.prompt_column or self.text_column):
            problem = "--prompt_column and --text_column are for tables, and --dataset is stdlib"
            raise UserError(problem, "leave them out, or name a table")


OPTIONS = (DataOptions, ModelOptions, TrainingOptions)
"""The classes whose options make the command line, in the order of `--help`."""

METRICS = (
    "train/loss", "val/loss", "val/bits_per_byte", "test/loss", "test/bits_per_byte", "lr",
    "samples_per_second", "data_wait",
)  # fmt: skip
"""Metrics that a run prints; of each, and of memory, the launcher makes a SageMaker metric."""

MONITOR = "val/bits_per_byte"
"""The validation metric that marks the best weights; a run ends with the test's of that name."""

MODE: Literal["max", "min"] = "min"
"""Whether the highest or the lowest value of MONITOR is best."""

SAMPLE = "def main("
"""The text of `predict.py --sample`; the rehearsal continues it with its trained model."""
