"""Options that every project has.

Preflight reads them, so this file imports nothing heavy.
"""

from dataclasses import dataclass
from typing import Literal

from smlightning.errors import UserError
from smlightning.options import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveOrMinusOne,
    Seed,
    option,
)


@dataclass(frozen=True)
class TrainerOptions:
    """Options of Lightning's Trainer, the strategy and the callbacks.

    A project derives its class from it. A field of the same name there replaces the one here.
    """

    epochs: PositiveInt = option(1, "passes over the training data", resume="path")
    max_steps: PositiveOrMinusOne = option(-1, "steps in all; -1: no limit", resume="path")
    seed: Seed = option(0, "determines splits, order, initial weights, dropout", resume="data")
    accumulate_grad_batches: PositiveInt = option(
        1, "batches per rank and optimizer step", resume="free"
    )
    gradient_clip_val: NonNegativeFloat = option(1.0, "largest norm; 0: none", resume="path")
    precision: Literal["auto", "32-true", "tf32", "bf16-mixed", "16-mixed"] = option(
        "auto",
        "auto: bf16-mixed on GPUs, on older ones 16-mixed (fsdp: 32-true), 32-true on a CPU; "
        "tf32: 32-true in TF32",
        resume="path",
    )
    strategy: Literal["ddp", "fsdp"] = option(
        "ddp",
        "fsdp divides weights and optimizer state among the ranks (docs/distributed.md)",
        resume="free",
    )
    shard_size: NonNegativeInt = option(
        0,
        "with fsdp, number of ranks that share one copy of the model, such as a host's (faster, "
        "needs more memory); 0: all",
        resume="free",
    )
    deterministic: bool = option(
        False,
        "use only GPU kernels whose results repeat exactly, to resume bit for bit",
        resume="free",
    )
    output_dir: str = option(
        "outputs", "folder of all results; a SageMaker job uses SageMaker's folders", resume="free"
    )
    resume: str = option(
        "auto",
        "auto: continue an unfinished run with the same options; never: start anew; or the path "
        "of a checkpoint",
        resume="free",
    )
    checkpoint_minutes: PositiveFloat = option(
        5.0,
        "minutes between two checkpoints; an epoch's end and a stop signal always make one",
        resume="free",
    )
    checkpoint_steps: NonNegativeInt = option(
        0, "steps between two checkpoints; 0: by minutes", resume="free"
    )
    hang_seconds: PositiveFloat = option(
        300.0,
        "hang timeout: a rank without progress for so long prints its stacks, and the job ends",
        resume="free",
    )
    val_check_steps: NonNegativeInt = option(
        0, "steps between two validations within an epoch; 0: one at its end", resume="optimizer"
    )
    log_every: PositiveInt = option(
        50, "optimizer steps between two lines of the log", resume="free"
    )

    def __post_init__(self) -> None:
        if self.strategy == "ddp" and self.shard_size:
            problem = f"--shard_size {self.shard_size} is for --strategy fsdp, and this is ddp"
            raise UserError(problem, "set --strategy to fsdp, or leave --shard_size out")
        if self.strategy == "fsdp" and self.precision == "16-mixed":
            problem = "--precision 16-mixed scales losses, and --strategy fsdp does not"
            raise UserError(problem, "set --precision to bf16-mixed, 32-true or auto")
