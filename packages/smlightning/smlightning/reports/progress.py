"""The progress of training: loss, learning rate and speed of each interval, and the curves.

Lightning's ThroughputMonitor does not measure mean losses, or intervals across a checkpoint.
"""

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateMonitor

from smlightning import errors
from smlightning.cluster import collectives
from smlightning.errors import UserError
from smlightning.reports import curves, log
from smlightning.reports.lines import MetricHistory
from smlightning.tensors import samples_of
from smlightning.training import loop as loop_state

ONLY_LOGGED = ("samples_per_second", "data_wait", *log.MEMORY)


@dataclass
class Interval:
    """Sums of this rank since the last line."""

    loss: torch.Tensor | float = 0.0  # over batches; a tensor stays on its device
    losses: float = 0.0  # batches with a loss
    batches: int = 0  # all batches, equally many on every rank
    samples: int = 0
    waited: float = 0.0  # seconds in which the loader fetched the next batch
    since: float = field(default_factory=lambda: time.perf_counter())


class ProgressReport(pl.Callback):
    """Measures each interval of training, and logs it to every logger of the Trainer.

    ``self.log`` costs up to 0.3 ms a step. Here a step costs one addition on the device; sums are
    reduced over ranks and logged once per interval. An interval ends after ``every`` steps, before
    a validation, and with an epoch.

    Args:
        every: optimizer steps per interval.
        directory: folder of the curves.
        history: the rows of the curves; checkpoints contain them.
    """

    def __init__(self, every: int, directory: Path, history: MetricHistory) -> None:
        self.every = every
        self.directory = directory
        self.history = history
        self.interval = Interval()
        self.world_size = self.accumulate = 1
        self.lr: Any = None  # of the first group; None if it has none, as Adafactor's
        self._asked_at = 0.0  # the time of the last request to the loader
        # The interval before a checkpoint: each rank's losses, and global batches with one.
        self.resumed: list[list[float]] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.history.stage = stage

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.world_size = trainer.world_size
        self.accumulate = trainer.accumulate_grad_batches
        self.interval = self._resumed_interval(trainer.global_rank)
        if trainer.is_global_zero:
            print(self._describe(trainer, pl_module), flush=True)
        check_watched(trainer)
        loop_state.watch_fetching(trainer, self._ask, self._receive)

    def _resumed_interval(self, rank: int) -> Interval:
        """This rank's interval before the checkpoint; on another number of ranks rank 0 has all."""
        ranks = self.resumed
        batches = math.ceil(max((batches for _, batches in ranks), default=0.0))
        if len(ranks) == self.world_size:
            loss, losses = ranks[rank]
        elif rank == 0 and ranks:
            share = self.world_size / len(ranks)
            loss, losses = (share * sum(column) for column in zip(*ranks, strict=True))
        else:
            loss = losses = 0.0
        return Interval(loss, losses * self.accumulate, batches)

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()

    def _receive(self) -> None:
        self.interval.waited += time.perf_counter() - self._asked_at

    def _describe(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> str:
        """The line before training: global batch, learning rate, steps, parameters, precision."""
        ranks = f"world_size={self.world_size} x accumulate_grad_batches={self.accumulate}"
        datamodule: Any = getattr(trainer, "datamodule", None)
        batches = getattr(trainer.train_dataloader, "batch_sampler", None)
        size = getattr(datamodule, "batch_size", None) or getattr(batches, "batch_size", None)
        if size:
            whole = size * self.world_size * self.accumulate
            ranks = f"global_batch={whole} ({size} per rank x {ranks})"
        rate = log.as_number(trainer.optimizers[0].defaults.get("lr"))
        highest = "" if rate is None else f"max_lr={rate:g} "
        parameters = sum(parameter.numel() for parameter in pl_module.parameters())
        return (
            f"{ranks} {highest}steps={int(trainer.estimated_stepping_batches)} "
            f"parameters={parameters} precision={trainer.precision}"
        )

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.history.epoch = trainer.current_epoch

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # At the batch's end the scheduler has already set the next step's rate.
        rate = trainer.optimizers[0].param_groups[0].get("lr")
        self.lr = rate.clone() if isinstance(rate, torch.Tensor) else rate

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        loss = outputs.get("loss")
        if loss is not None:  # training_step may skip a batch
            self.interval.loss = self.interval.loss + loss.detach()
            self.interval.losses += 1
        self.interval.batches += 1
        self.interval.samples += samples_of(batch) or 1
        is_step = (batch_idx + 1) % self.accumulate == 0 or trainer.is_last_batch
        if is_step and (loop_state.steps(trainer) + 1) % self.every == 0:
            self._end_interval(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._end_interval(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.interval.since = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_interval(trainer, steps_ago=1)

    def _end_interval(self, trainer: pl.Trainer, steps_ago: int = 0) -> None:
        """Log an interval and begin the next. Collective: every rank calls it at the same step."""
        if not self.interval.batches:
            return
        seconds = time.perf_counter() - self.interval.since
        loss, losses, waited = self._over_ranks(min(self.interval.waited / seconds, 1.0))
        if losses:
            loss *= self.accumulate / losses
        rate = log.as_number(self.lr)
        watched = {
            **({"train/loss": loss} if losses else {}),  # manual optimization returns none
            **({} if rate is None else {"lr": rate}),
        }
        loop_state.publish(trainer, watched)
        metrics = {
            **watched,
            "samples_per_second": self.interval.samples * self.world_size / seconds,
            "data_wait": waited,
            **peak_memory(trainer.lightning_module.device),
            "epoch": trainer.current_epoch,
        }
        index = loop_state.steps(trainer) - steps_ago  # as Lightning numbers steps, from 0
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=index)
        if not math.isfinite(loss):
            check_finite_weights(trainer.lightning_module, index + 1)
        self.interval = Interval()

    def _over_ranks(self, waited: float) -> list[float]:
        """Means over the ranks: the sum of losses, their number, and ``waited``.

        Collective, with a single reduction, since each reduction costs a round trip.
        """
        loss = torch.as_tensor(self.interval.loss, dtype=torch.float32).reshape(())
        losses, share = loss.new_tensor(self.interval.losses), loss.new_tensor(waited)
        means = collectives.all_sum(torch.stack([loss, losses, share])) / self.world_size
        return means.tolist()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        steps, planned = loop_state.steps(trainer), int(trainer.estimated_stepping_batches)
        if trainer.is_global_zero and trainer.should_stop and steps < planned:
            callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
            reasons = [getattr(each, "stopping_reason_message", None) for each in callbacks]
            reason = next(filter(None, reasons), "trainer.should_stop was set")  # EarlyStopping's
            print(f"training ended early, at step {steps} of {planned}: {reason}", flush=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the curves, also if a resumed run was complete already."""
        if trainer.is_global_zero and self.history.rows:
            with errors.warn_on_failure("drawing the curves"):
                curves.write_curves(self.history.rows, self.directory)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            curves.write_csv(self.history.rows, self.directory)

    def state_dict(self) -> dict[str, Any]:
        """The rows, and the current interval of each rank. Collective."""
        loss = torch.as_tensor(self.interval.loss, dtype=torch.float64).reshape(())
        numbers = torch.stack([loss, torch.full_like(loss, self.interval.losses / self.accumulate)])
        return {
            "rows": self.history.rows,
            "ranks": collectives.from_each_rank(numbers).tolist() if self.interval.batches else [],
            "lr": log.as_number(self.lr),
        }

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the model's metrics of this step, which Lightning logs after the checkpoint."""
        metrics = loop_state.step_metrics(trainer)
        if metrics:
            last = MetricHistory()
            last.rows = [dict(row) for row in self.history.rows[-1:]]
            last.add({**metrics, "epoch": trainer.current_epoch}, loop_state.steps(trainer))
            rows = [*self.history.rows[:-1], *last.rows]
            checkpoint["callbacks"][self.state_key]["rows"] = rows

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history.rows = state_dict["rows"]
        self.resumed = state_dict["ranks"]
        self.lr = state_dict["lr"]


def check_watched(trainer: pl.Trainer) -> None:
    """Raise a UserError if a callback or a schedule watches what it cannot."""
    every: Any = trainer
    groups = [(each, group) for each in trainer.optimizers for group in each.param_groups]
    without = [type(each).__name__ for each, group in groups if group.get("lr") is None]
    if without and any(isinstance(each, LearningRateMonitor) for each in every.callbacks):
        raise UserError(
            f"LearningRateMonitor logs learning rates, and {without[0]} has no learning rate",
            "remove LearningRateMonitor, or give the optimizer lr",
        )
    watching: list[Any] = [*every.callbacks, *trainer.lr_scheduler_configs]
    for each in watching:
        if getattr(each, "monitor", None) in ONLY_LOGGED:
            name = type(getattr(each, "scheduler", each)).__name__
            raise UserError(
                f"{name} watches {each.monitor}, which is another number on each rank and in each "
                "run",
                "watch train/loss, lr, or a metric that the model logs",
            )


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peak memory of this process in GiB: of the host (except on Windows) and of its GPU.

    The host's is the resident set of this process, without its loader's workers.
    """
    values = {}
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB on Linux
        values["host_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    if device.type == "cuda":
        values["gpu_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return values


def check_finite_weights(model: pl.LightningModule, step: int) -> None:
    """Raise a UserError if a trained weight is not finite: training cannot repair it.

    A loss that is not finite is no error: a gradient scaler skips the step.
    """
    for name, weights in model.named_parameters():
        if weights.requires_grad and not weights.isfinite().all():
            raise UserError(
                f"training failed: at step {step} {name} has values that are not finite",
                "look for such values in the data, lower the learning rate or clip gradients; "
                "--resume PATH goes on from the newest checkpoint, which has finite weights, and "
                "--resume never from the start",
            )
