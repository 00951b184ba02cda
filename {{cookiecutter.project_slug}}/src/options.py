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
        "cldr",
        "cldr (built in), training (the channel), a hub name, or a path (csv, jsonl, …)",
        resume="data",
    )
    batch_size: PositiveInt = option(
        64,
        "samples per rank and step; global batch: this × world size × accumulate_grad_batches",
        resume="free",
    )
    text_column: str = option(
        "", "name of the text column; empty: found by its usual names", resume="data"
    )
    label_column: str = option(
        "", "name of the label column; empty: found by its usual names", resume="data"
    )
    num_workers: OrMinusOne = option(-1, "per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each host for prepared data", resume="free")
    # model
    model_name: str = option(
        "bytecnn", "bytecnn, or a Hugging Face sequence classifier by name or path", resume="data"
    )
    max_length: PositiveInt = option(256, "tokens of a text; longer texts are cut", resume="data")
    lr: PositiveFloat = option(2e-3, "highest learning rate; to fine-tune 2e-5", resume="optimizer")
    weight_decay: NonNegativeFloat = option(
        0.01, "weight decay of AdamW, only for matrices", resume="optimizer"
    )
    warmup_ratio: Ratio = option(0.06, "share of steps in which lr rises", resume="path")
    lr_scaling: Literal["none", "linear"] = option(
        "none",
        "linear multiplies lr by the world size (a heuristic; raise warmup_ratio with it)",
        resume="optimizer",
    )
    compile: bool = option(False, "torch.compile the network", resume="free")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, more time", resume="free"
    )
    # training
    epochs: PositiveInt = option(6, "passes over the training data", resume="path")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset == "cldr" and (self.text_column or self.label_column):
            problem = "--text_column and --label_column are for tables, and --dataset is cldr"
            raise UserError(problem, "leave them out, or name a table")
        if self.model_name == "bytecnn" and self.gradient_checkpointing:
            problem = "--gradient_checkpointing is for Hugging Face models"
            raise UserError(problem, "leave it out, or choose another --model_name")


METRICS = (
    "train/loss", "val/loss", "val/accuracy", "val/macro_f1", "test/loss", "test/accuracy",
    "test/macro_f1", "lr", "samples_per_second", "data_wait",
)  # fmt: skip
"""Metrics that a run prints; the launcher makes each of them a SageMaker metric."""

MONITOR = "val/accuracy"
"""The validation metric that chooses the best weights; a run prints the test's last."""

MODE: Literal["max", "min"] = "max"
"""Whether the highest or the lowest value of MONITOR is best."""

SAMPLE = "Île de la Réunion"
"""The text of `predict.py --sample`; the rehearsal predicts it with its trained model."""
