"""Every option of model, data and training; what a run measures, and which of it says that a model is best.

An option is one line: type, default and explanation make `--name` on the command line and the check of job.toml's
hyperparameters; `Model` and `Data` read it as `self.options.name`. `resume` says whether a run may resume with another
value: `option` in runtime/command_line.py. Nothing heavy is imported, since the launcher reads this file too.
"""

from dataclasses import dataclass
from typing import Literal

from runtime.command_line import (
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


@dataclass(frozen=True)
class ModelOptions:
    """What `model.Model` takes."""

    model_name: str = option("bytecnn", "bytecnn, or a Hugging Face sequence classifier by name or path", resume="data")
    max_length: PositiveInt = option(256, "longest text in tokens; what is longer is cut off", resume="data")
    lr: PositiveFloat = option(2e-3, "highest learning rate; to fine-tune about 2e-5", resume="optimizer")
    weight_decay: NonNegativeFloat = option(0.01, "of AdamW, on matrices only", resume="optimizer")
    warmup_ratio: Ratio = option(0.06, "fraction of all steps in which the learning rate rises from 0")
    lr_scaling: Literal["none", "linear"] = option(
        "none", "linear multiplies lr by the world size (a heuristic; raise warmup_ratio with it)", resume="optimizer"
    )
    compile: bool = option(False, "torch.compile the network", resume="free")
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, more time", resume="free"
    )


@dataclass(frozen=True)
class TrainingOptions:
    """What `train.train` gives to the Trainer and its callbacks."""

    epochs: PositiveInt = option(6, "passes over the training data")
    max_steps: OrMinusOne = option(-1, "stop after this many optimizer steps; -1: no limit, epochs decide")
    seed: Seed = option(0, "determines splits, order of samples, initial weights and dropout", resume="data")
    accumulate_grad_batches: PositiveInt = option(1, "batches per rank and optimizer step", resume="free")
    gradient_clip_val: NonNegativeFloat = option(1.0, "largest norm of the gradient; 0: no clipping")
    precision: Literal["auto", "32-true", "tf32", "bf16-mixed", "16-mixed"] = option(
        "auto", "auto: bf16-mixed on GPUs, 16-mixed on those without bf16, 32-true on a CPU; tf32: 32-true with TF32"
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = option(
        "none", "of gradients between ranks; powersgd (rank 2, from step 100 on) does not resume exactly"
    )
    bucket_cap_mb: PositiveInt = option(25, "largest size in MiB in which gradients are sent", resume="free")
    deterministic: bool = option(False, "allow only GPU kernels that give the same numbers each time", resume="free")
    output_dir: str = option("outputs", "folder of all results; on SageMaker its own folders", resume="free")
    resume: str = option(
        "auto", "auto (where an unfinished run of these options stopped), never, or a checkpoint's path", resume="free"
    )
    checkpoint_minutes: PositiveFloat = option(
        5.0, "between two checkpoints; an epoch's end and a stop signal make one anyway", resume="free"
    )
    checkpoint_steps: NonNegativeInt = option(0, "steps between two checkpoints; 0: by minutes alone", resume="free")
    hang_seconds: PositiveFloat = option(
        60.0, "hang timeout; after 60 % of it the stalled rank is reported and the job is aborted", resume="free"
    )
    val_check_steps: NonNegativeInt = option(
        0, "steps between two validations within an epoch, besides that at its end; 0: none", resume="optimizer"
    )
    log_every: PositiveInt = option(50, "optimizer steps between two lines of the log", resume="free")


@dataclass(frozen=True)
class DataOptions:
    """What `data.Data` takes."""

    RESUME = "data"  # these options decide which samples a step sees, except where one says otherwise

    dataset: str = option(
        "cldr", "cldr (built in), training (the job's channel), a hub name, or a path (csv, jsonl, parquet, arrow)"
    )
    model_name: str = shared(ModelOptions.model_name)  # its tokenizer makes the tokens
    max_length: PositiveInt = shared(ModelOptions.max_length)
    batch_size: PositiveInt = option(
        64, "samples per rank and step; the global batch is this × world size × accumulate_grad_batches", resume="free"
    )
    text_column: str = option("", "name of the text column; empty: found by its usual names")
    label_column: str = option("", "name of the label column; empty: found by its usual names")
    seed: Seed = shared(TrainingOptions.seed)
    num_workers: OrMinusOne = option(-1, "loader processes per rank; -1: 2 on a GPU, 0 on a CPU", resume="free")
    data_dir: str = option("prepared", "folder of each node where prepared data is kept", resume="free")


OPTIONS = (DataOptions, ModelOptions, TrainingOptions)
"""The classes whose options make the command line, in the order of `--help`; no name may occur twice."""

METRICS = (
    "train/loss",
    "val/loss",
    "val/accuracy",
    "val/macro_f1",
    "test/loss",
    "test/accuracy",
    "test/macro_f1",
    "lr",
    "samples_per_second",
)
"""Every metric that a run prints; the launcher turns each into a SageMaker metric definition."""

MONITOR = "val/accuracy"
"""The validation metric whose best value marks the best weights; a run ends with the same metric of the test set."""

MODE: Literal["max", "min"] = "max"
"""Whether the highest or the lowest value of MONITOR is best."""

SAMPLE = "Île de la Réunion"
"""What `predict.py --sample` asks the model; the rehearsal does so with a model that it has trained."""
