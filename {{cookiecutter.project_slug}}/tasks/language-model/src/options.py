"""Every option of model, data and training; what a run measures, and which metric is monitored.

An option is a typed field with a default and an explanation. It becomes `--name` on the command
line and is checked in job.toml's hyperparameters; `Model` and `Data` read it as
`self.options.name`. `resume` says whether a run may resume with another value: see `option` in
smlightning/options.py. Nothing heavy is imported, since the launcher reads this file, too.
"""

from dataclasses import dataclass
from typing import Literal

from smlightning.options import (
    NonNegativeFloat,
    NonNegativeInt,
    OrMinusOne,
    PositiveFloat,
    PositiveInt,
    PositiveOrMinusOne,
    Ratio,
    Seed,
    option,
    shared,
)


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


@dataclass(frozen=True)
class TrainingOptions:
    """What `train.train` gives to the Trainer and its callbacks."""

    RESUME = "free"  # a resumed run may have other values, unless an option says otherwise

    epochs: PositiveInt = option(1, "passes over the training data", resume="path")
    max_steps: PositiveOrMinusOne = option(-1, "steps in all; -1: no limit", resume="path")
    seed: Seed = option(0, "determines splits, order, initial weights, dropout", resume="data")
    accumulate_grad_batches: PositiveInt = option(1, "batches per rank and optimizer step")
    gradient_clip_val: NonNegativeFloat = option(1.0, "largest norm; 0: none", resume="path")
    precision: Literal["auto", "32-true", "tf32", "bf16-mixed", "16-mixed"] = option(
        "auto",
        "auto: bf16-mixed on GPUs, 16-mixed on older ones, 32-true on a CPU; tf32: 32-true in TF32",
        resume="path",
    )
    strategy: Literal["ddp", "fsdp"] = option(
        "ddp", "fsdp divides weights and optimizer state among the ranks (docs/recipes.md)"
    )
    shard_size: NonNegativeInt = option(
        0, "of fsdp: ranks that share one copy, as those of a host (faster, more memory); 0: all"
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = option(
        "none",
        "of gradients between ranks; powersgd (rank 2, from step 100 on) does not resume exactly",
        resume="path",
    )
    bucket_cap_mb: PositiveInt = option(25, "largest size in MiB in which gradients are sent")
    deterministic: bool = option(False, "allow only GPU kernels that repeat their numbers")
    output_dir: str = option("outputs", "folder of all results; on SageMaker its own folders")
    resume: str = option(
        "auto",
        "auto (where an unfinished run of these options stopped), never, or a checkpoint's path",
    )
    checkpoint_minutes: PositiveFloat = option(
        5.0, "between two checkpoints; an epoch's end and a stop signal make one anyway"
    )
    checkpoint_steps: NonNegativeInt = option(0, "steps between two checkpoints; 0: by minutes")
    hang_seconds: PositiveFloat = option(
        60.0, "hang timeout; after 60 % of it the stalled rank is reported and the job is aborted"
    )
    val_check_steps: NonNegativeInt = option(
        0, "steps between two validations within an epoch; 0: one at its end", resume="optimizer"
    )
    log_every: PositiveInt = option(50, "optimizer steps between two lines of the log")


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
