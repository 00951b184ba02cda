"""Callbacks, arguments and strategies with which a run cannot be resumed exactly."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from smlightning.cluster.sharding import ShardedStrategy
from smlightning.errors import UserError
from smlightning.training import loop

# Classes of callbacks, what they would do, and what to use.
CALLBACKS: tuple[tuple[tuple[type, ...], str, str], ...] = (
    (
        (LearningRateFinder, BatchSizeFinder),
        "changes an option within a run, and a resumed run would not know the new value",
        "use pytorch_lightning.tuner.Tuner in a separate script, as in docs/reference.md, and pass "
        "its result as an option",
    ),
    (
        (GradientAccumulationScheduler,),
        "changes the global batch within a run, and a resumed run could not repeat this",
        "set --accumulate_grad_batches for all of the run",
    ),
    (
        (StochasticWeightAveraging,),
        "averages weights after the last validation, so these averages are never validated",
        "use EMAWeightAveraging or WeightAveraging, whose averages are validated",
    ),
    (
        (ModelPruning,),
        "renames weights within a run, so the best weights could not be loaded",
        "prune the saved model, then train it again",
    ),
)


def start_averages(trainer: pl.Trainer) -> None:
    """Until something is averaged, let the trained weights be the average.

    WeightAveraging would validate and save the initial weights (Lightning#21724). Its first update
    copies the weights again.
    """
    every: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    model = trainer.lightning_module
    for callback in every:
        average: Any = getattr(callback, "_average_model", None)
        if isinstance(callback, WeightAveraging) and average and average.n_averaged == 0:
            averages = [*average.module.parameters(), *average.module.buffers()]
            for own, trained in zip(averages, [*model.parameters(), *model.buffers()], strict=True):
                own.data.copy_(trained.data)


def check_trainer(trainer: pl.Trainer, stage: str) -> None:
    """Raise a UserError if a callback, an argument or the strategy cannot be resumed exactly."""
    every: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in every:
        for kinds, problem, hint in CALLBACKS:
            if isinstance(callback, kinds):
                raise UserError(f"{type(callback).__name__} {problem}", hint)
        if isinstance(callback, OnExceptionCheckpoint) and trainer.world_size > 1:
            raise UserError(
                "OnExceptionCheckpoint saves on a rank that failed, and saving waits for all ranks",
                "remove it: after a failure --resume auto continues from the last checkpoint",
            )
        if isinstance(callback, BaseFinetuning) and trainer.world_size > 1:
            raise UserError(
                f"{type(callback).__name__} unfreezes parameters after DDP has wrapped the model, "
                "and each rank would train them on its own data only",
                "train these parameters from the start, at first with a learning rate of 0",
            )
    saves = any(isinstance(callback, ModelCheckpoint) for callback in every)
    if stage == "fit" and not saves:
        for logger in trainer.loggers:
            _check_uploads(logger, trainer.is_global_zero)
    averages = any(isinstance(callback, WeightAveraging) for callback in every)
    if averages and isinstance(trainer.strategy, ShardedStrategy):
        raise UserError(
            "WeightAveraging averages whole weights, and each rank has a shard",
            "remove WeightAveraging, or use --strategy ddp",
        )
    if loop.validates_by_the_clock(trainer):
        raise UserError(
            "val_check_interval is a time, and a resumed run would validate at other steps",
            "use --val_check_steps",
        )
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy | ShardedStrategy):
        raise UserError(
            f"{type(trainer.strategy).__name__} may divide the weights in a way that Checkpoints "
            "does not know",
            "use what dist.get_initialization_info() returns",
        )
    if stage == "fit" and trainer.max_epochs == trainer.max_steps == -1:
        raise UserError(
            "The number of steps is not known: max_epochs and max_steps are both -1",
            "set one of them",
        )


def _check_uploads(logger: Any, prints: bool) -> None:
    """Raise a UserError if a logger waits for the files of a ModelCheckpoint, and there is none.

    If only its own ``after_save_checkpoint`` shows that it may, a rank that prints warns.
    """
    name, own = type(logger).__name__, type(logger).after_save_checkpoint
    flags = [value for key, value in vars(logger).items() if "log_model" in key]
    problem = "gets the weights that a ModelCheckpoint saves, and this run has none"
    hint = "add pl.callbacks.ModelCheckpoint(monitor=MONITOR, mode=MODE) after *run.callbacks()"
    if any(flags):
        raise UserError(f"{name}(log_model=...) {problem}", hint)
    is_own = not own.__module__.startswith(("pytorch_lightning.", "lightning."))
    if is_own and not flags and prints:
        print(f"warning: {name}.after_save_checkpoint {problem}; {hint}", file=sys.stderr)


def warn_of_lost_folders(trainer: pl.Trainer, checkpoints: Path) -> None:
    """In a job, print a warning for each folder of a logger, a callback or the profiler that is
    lost with the host.

    Args:
        checkpoints: a folder that SageMaker keeps, as those of the model and of the outputs.
    """
    names = ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR")
    kept = [checkpoints, *(Path(os.environ[name]) for name in names if name in os.environ)]
    if len(kept) == 1 or not trainer.is_global_zero:
        return
    for name, folder in _folders(trainer):
        path = Path(folder).resolve()
        if not any(path.is_relative_to(each.resolve()) for each in kept):
            print(
                f"warning: {name} writes to {path}, which is lost when the job ends; give it a "
                "folder below run.outputs",
                file=sys.stderr,
            )


def _folders(trainer: pl.Trainer) -> Iterator[tuple[str, str]]:
    """Names of classes, and the local folders that they have been given."""
    every: Any = trainer
    for each in (*every.loggers, *every.callbacks, every.profiler):
        folder = getattr(each, "save_dir", None) or getattr(each, "dirpath", None)
        if folder and "://" not in str(folder):
            yield type(each).__name__, str(folder)
