"""Lightning's training loop (2.6.6): its position, its validations, and resuming within an epoch.

Only this file uses the private names of the loops and of the logger connector, except those about
signals, which are in cluster/signals.py. tests/runtime/test_upgrades.py checks each private name of
a library that the package uses.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.call import _call_lightning_datamodule_hook
from pytorch_lightning.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)

from smlightning.errors import UserError

REDUCTIONS = {"sum": sum, "max": max, "min": min}  # Python's, which self.log takes, too


class ValidationSteps(pl.Callback):
    """Validates after every so many optimizer steps of an epoch and at its end; with 0 only then.

    ``Trainer(val_check_interval)`` skips the end of an epoch that the interval does not divide.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_start(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Set ``val_check_batch``: Lightning validates at the batches that it divides."""
        if not self.steps:
            return
        if trainer.is_last_batch:
            trainer.val_check_batch = batches_of_epoch(trainer)
        else:
            trainer.val_check_batch = self.steps * trainer.accumulate_grad_batches

    on_train_batch_end = on_train_start


# What ProgressReport measures, and lets schedules and callbacks watch.
PUBLISHED = frozenset(("train/loss", "lr"))


def leave(trainer: Any, callback: pl.Callback) -> None:
    """Take a callback that is done out of the Trainer, which calls six hooks of each in a step.

    The loop over the callbacks that is calling one goes on: their list is another one.
    """
    trainer.callbacks = [other for other in trainer.callbacks if other is not callback]


def steps(trainer: pl.Trainer) -> int:
    """Global batches complete before this batch's end; ``global_step`` counts each of several
    optimizers' steps.
    """
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def batches_of_epoch(trainer: pl.Trainer) -> int:
    """A rank's batches of this epoch, with the one in training; each that is accumulated counts."""
    return trainer.fit_loop.epoch_loop.batch_idx + 1


def batches_trained(trainer: pl.Trainer) -> int:
    """A rank's batches of all epochs, with the one in training; each that is accumulated counts."""
    return trainer.fit_loop.epoch_loop.total_batch_idx + 1


def step_metrics(trainer: pl.Trainer) -> dict[str, Any]:
    """The model's metrics of the current step, which Lightning logs after the batch's hooks."""
    connector: Any = trainer._logger_connector
    is_within_batch = trainer.training and connector._first_loop_iter is not None
    return connector.metrics["log"] if is_within_batch and connector.should_update_logs else {}


def logged_metric(trainer: pl.Trainer, name: str) -> Any:
    """The torchmetrics object that ``self.log`` got, in the current loop or in training; None if it
    got a number.
    """
    loops: Any = (trainer._results or {}, trainer.fit_loop.epoch_loop._results)
    logged = (each for results in loops for each in results.values())
    named = (each.value for each in logged if each.meta.name == name and not each.is_tensor)
    return next(named, None)


def state(trainer: pl.Trainer) -> dict[str, Any]:
    """The state of model, optimizers, schedulers, callbacks and loops: a checkpoint's content.

    ``Trainer.save_checkpoint`` writes it at once, to a path. Collective, as saving is.
    """
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def callback_metrics(trainer: pl.Trainer) -> dict[str, Any]:
    """The latest metrics, which schedulers and callbacks read; without those of this step."""
    return trainer._logger_connector._callback_metrics


def publish(trainer: pl.Trainer, metrics: Mapping[str, float]) -> None:
    """Let schedules and callbacks read metrics, except those that the model logs by these names."""
    logged = {each.meta.name for each in trainer.fit_loop.epoch_loop._results.values()}
    for name in metrics.keys() - logged:
        callback_metrics(trainer)[name] = torch.tensor(metrics[name])


def epoch_sums(trainer: pl.Trainer) -> dict[str, Any]:
    """The sums of ``self.log(..., on_epoch=True)`` in this epoch of training, by Lightning's names.

    Torchmetrics objects keep their own sums: only their names are here.
    """
    sums = {}
    for key, metric in trainer.fit_loop.epoch_loop._results.items():
        meta, sync = metric.meta, metric.meta.sync
        if meta.on_epoch and not metric.has_reset and sync.group is None:
            names = (each.name for each in fields(meta) if each.name not in ("reduce_fx", "_sync"))
            sums[key] = {
                "meta": {name: getattr(meta, name) for name in names},
                "reduce": [meta.reduce_fx.__name__, meta.reduce_fx in REDUCTIONS.values()],
                "sync": [sync.should, sync.rank_zero_only],
                "state": {name: getattr(metric, name) for name in metric._defaults},
            }
    return sums


def set_epoch_sum(trainer: pl.Trainer, key: str, saved: dict[str, Any]) -> None:
    """Set a sum of `epoch_sums`, as if this process had logged it."""
    name, of_python = saved["reduce"]
    reduce: Any = REDUCTIONS[name] if of_python else name
    meta = _Metadata(**saved["meta"], reduce_fx=reduce)
    should, rank_zero_only = saved["sync"]
    meta.sync = _Sync(fn=trainer.strategy.reduce, _should=should, rank_zero_only=rank_zero_only)
    metric = _ResultMetric(meta, is_tensor=meta.metric_attribute is None)
    if meta.metric_attribute is not None:
        metric.value = trainer.lightning_module.get_submodule(meta.metric_attribute)
    for state, value in saved["state"].items():
        setattr(metric, state, value)
    metric._update_count = 1
    trainer.fit_loop.epoch_loop._results[key] = metric.to(trainer.strategy.root_device)


def continue_epoch(trainer: pl.Trainer) -> None:
    """Let the next batch's ``self.log`` add to the sums, which the first batch would reset."""
    trainer._logger_connector._first_loop_iter = False


def module_modes(trainer: pl.Trainer) -> dict[str, bool]:
    """Whether each module trains or, within validation, did so before and will do so again."""
    validation: Any = trainer.fit_loop.epoch_loop.val_loop
    return validation._module_mode.mode if trainer.validating else {}


def set_module_mode(trainer: pl.Trainer, module: torch.nn.Module, mode: bool) -> None:
    """Set the mode of one module, within validation the one that it has afterwards."""
    if not trainer.validating:
        module.training = mode
    for path, other in trainer.lightning_module.named_modules():
        if other is module:
            module_modes(trainer)[path] = mode


def validates_by_the_clock(trainer: pl.Trainer) -> bool:
    """Whether ``val_check_interval`` is a time."""
    any_trainer: Any = trainer  # trainer/setup.py sets it
    return any_trainer._val_check_time_interval is not None


def divides_data(trainer: pl.Trainer) -> bool:
    """Whether the Trainer's ``use_distributed_sampler`` lets ranks divide a loader's order."""
    return bool(trainer._accelerator_connector.use_distributed_sampler)


@contextlib.contextmanager
def at_epoch(trainer: pl.Trainer, epoch: int) -> Iterator[None]:
    """Let ``trainer.current_epoch`` be another one."""
    progress = trainer.fit_loop.epoch_progress.current
    before, progress.completed = progress.completed, epoch
    try:
        yield
    finally:
        progress.completed = before


def set_reloaded(trainer: pl.Trainer, epoch: int) -> None:
    """Let ``reload_dataloaders_every_n_epochs`` count from this epoch, not from the resumed one."""
    trainer.fit_loop._last_train_dl_reload_epoch = epoch


def watch_fetching(trainer: pl.Trainer, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Call functions before and after each fetch of a training batch.

    Lightning has hooks for it only in its profiler, which is the user's.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    for name, call in (("_on_before_fetch", begin), ("_on_after_fetch", end)):
        setattr(loop, name, _both(getattr(type(loop), name).__get__(loop), call))


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


def check_count(trainer: pl.Trainer, step: int) -> None:
    """Raise a UserError if ``max_steps`` would not count global batches, as ``step`` does."""
    if trainer.max_steps != -1 and trainer.global_step != step:
        raise UserError(
            f"max_steps={trainer.max_steps} would end training too early or too late: in manual "
            f"optimization Lightning counts each optimizer's steps, {trainer.global_step} after "
            f"{step} global batches",
            "set epochs, or the Trainer's limit_train_batches, instead",
        )


def end_restart(trainer: pl.Trainer) -> None:
    """End Lightning's restart mode, in which ReduceLROnPlateau would skip the resumed epoch."""
    trainer.fit_loop._restarting = False


def set_progress(
    fit_loop: dict[str, Any],
    *,
    step: int,
    epoch: int,
    batches: int,
    all_batches: int,
    last: bool,
    validate: bool,
    complete: bool,
    max_steps: int,
) -> None:
    """Write a position into the state of Lightning's fit loop, as if a run had just reached it.

    Lightning's own state depends on the hook that saves and on accumulation; after some of them a
    resumed run repeats or skips the end of an epoch.

    Args:
        fit_loop: ``checkpoint["loops"]["fit_loop"]``, changed in place.
        step: global batches in all.
        epoch: complete epochs.
        batches: of a rank, in the next epoch; each that is accumulated counts.
        all_batches: of a rank, in all epochs.
        last: whether the epoch has no more.
        validate: whether validation comes next.
        complete: whether training is.
        max_steps: the Trainer's.
    """
    ended = complete or step == max_steps  # Lightning does not enter its loop again
    begun = epoch + (batches > 0)
    _set_counters(fit_loop["epoch_progress"]["current"], begun, begun if ended else epoch)
    _set_counters(fit_loop["epoch_progress"]["total"], begun, begun if ended else epoch)
    progress = fit_loop["epoch_loop.batch_progress"]
    _set_counters(progress["current"], batches, batches)
    _set_counters(progress["total"], all_batches, all_batches)
    progress["is_last_batch"] = last
    validation = fit_loop["epoch_loop.val_loop.batch_progress"]
    _set_counters(validation["current"], int(validate), 0)
    _set_counters(validation["total"], int(validate), 0)
    validation["is_last_batch"] = False
    # Lightning counts one more before the next batch: after validation and, with max_steps, at the
    # start of an epoch.
    counted = not ended and (validate or (batches == 0 and max_steps != -1))
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = step - counted


def _set_counters(counters: dict[str, int], started: int, complete: int) -> None:
    for name in counters:
        counters[name] = started if name in ("ready", "started") else complete


def is_called_by_lightning(frame: FrameType) -> bool:
    """Whether the frame is that of Lightning's calls of a data module's methods."""
    return frame.f_code is _call_lightning_datamodule_hook.__code__
