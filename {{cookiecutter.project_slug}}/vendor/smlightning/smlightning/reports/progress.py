"""How training goes: loss, learning rate and speed of each interval, and the curves at the end.

Lightning's ThroughputMonitor measures no mean loss, and no interval that a checkpoint divides.
"""

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from smlightning import errors
from smlightning.cluster import collectives
from smlightning.data.batches import leaves
from smlightning.errors import UserError
from smlightning.reports import curves
from smlightning.reports.history import MetricHistory
from smlightning.training import loop as loop_state


@dataclass
class Interval:
    """What this rank has trained on since the last line."""

    loss: torch.Tensor | float = 0.0  # sum over batches; a tensor stays on its device
    losses: float = 0.0  # batches that gave a loss
    batches: int = 0  # all, equally many on every rank
    samples: int = 0
    waited: float = 0.0  # seconds in which the loader was asked for the next batch
    since: float = field(default_factory=lambda: time.perf_counter())


class ProgressReport(pl.Callback):
    """Measures each interval of training, and logs it to every logger of the Trainer.

    ``self.log`` in every step costs up to 0.3 ms a step. Here a step costs one addition on the
    device, and numbers are read, summed over ranks and logged once per interval. An interval ends
    after ``every`` steps, before a validation, and with an epoch.

    Args:
        every: optimizer steps per interval.
        directory: where the curves are written at the end of training.
        history: the rows that become the curves; a checkpoint holds them.
    """

    def __init__(self, every: int, directory: Path, history: MetricHistory) -> None:
        self.every = every
        self.directory = directory
        self.history = history
        self.interval = Interval()
        self.world_size = self.accumulate = 1
        self.total_steps = 0
        self.lr = math.nan
        self._asked_at = 0.0  # when the loader was last asked for a batch
        # Of the interval that a checkpoint divided: mean loss over ranks, and global batches.
        self.resumed_loss = self.resumed_batches = 0.0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.history.begin(stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.world_size = trainer.world_size
        self.accumulate = trainer.accumulate_grad_batches
        self.total_steps = int(trainer.estimated_stepping_batches)
        if trainer.is_global_zero:
            print(self._describe(trainer, pl_module), flush=True)
        self.interval = Interval(batches=math.ceil(self.resumed_batches))
        if trainer.is_global_zero:
            self.interval.loss = self.resumed_loss * self.world_size
            self.interval.losses = self.resumed_batches * self.accumulate * self.world_size
        loop_state.watch_fetching(trainer, self._ask, self._receive)

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()

    def _receive(self) -> None:
        self.interval.waited += time.perf_counter() - self._asked_at

    def _describe(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> str:
        """The line before training: global batch, learning rate, steps, parameters, precision."""
        ranks = f"world_size={self.world_size} x accumulate_grad_batches={self.accumulate}"
        per_rank = self._batch_size(trainer)
        if per_rank:
            whole = per_rank * self.world_size * self.accumulate
            ranks = f"global_batch={whole} ({per_rank} per rank x {ranks})"
        rate = trainer.optimizers[0].defaults.get("lr", math.nan)
        parameters = sum(parameter.numel() for parameter in pl_module.parameters())
        return (
            f"{ranks} max_lr={rate:g} steps={self.total_steps} "
            f"parameters={parameters} precision={trainer.precision}"
        )

    def _batch_size(self, trainer: pl.Trainer) -> int:
        """Samples per rank and batch, as the loader or the data module says; 0 if neither does."""
        loader: Any = trainer.train_dataloader
        global_batch = getattr(getattr(loader, "sampler", None), "global_batch", 0)
        if global_batch:  # of smlightning.data.batches
            return int(global_batch // (self.world_size * self.accumulate))
        datamodule: Any = getattr(trainer, "datamodule", None)
        return getattr(datamodule, "batch_size", None) or getattr(loader, "batch_size", None) or 0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # Read now: at the batch's end the scheduler has set the next step's.
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]

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
        self.interval.samples += _size(batch)
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
        """Log an interval and begin the next. Collective: every rank gets here at the same step."""
        if not self.interval.batches:
            return
        seconds = time.perf_counter() - self.interval.since
        loss, losses, waited = self._over_ranks(min(self.interval.waited / seconds, 1.0))
        if not losses:
            return
        loss *= self.accumulate / losses
        metrics = {
            "train/loss": loss,
            "lr": self.lr,
            "samples_per_second": self.interval.samples * self.world_size / seconds,
            "data_wait": waited,
            **peak_memory(trainer.lightning_module.device),
            "epoch": trainer.current_epoch,
        }
        index = loop_state.steps(trainer) - steps_ago  # as Lightning numbers steps, from 0
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=index)
        if not math.isfinite(loss):
            refuse_diverged_weights(trainer.lightning_module, index + 1)
        self.interval = Interval()

    def _over_ranks(self, waited: float) -> list[float]:
        """The means over the ranks: of the sum of losses, of their number, and of ``waited``.

        Collective, and one reduction: each costs the ranks a round trip.
        """
        loss = torch.as_tensor(self.interval.loss, dtype=torch.float32).reshape(())
        losses, share = loss.new_tensor(self.interval.losses), loss.new_tensor(waited)
        means = collectives.all_sum(torch.stack([loss, losses, share])) / self.world_size
        return means.tolist()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        steps = loop_state.steps(trainer)
        if trainer.should_stop and steps < self.total_steps:
            reason = _stopping_reason(trainer)
            print(
                f"training ended early, at step {steps} of {self.total_steps}: {reason}", flush=True
            )
        device = pl_module.device
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device) / 2**30
            total = torch.cuda.get_device_properties(device).total_memory / 2**30
            print(f"peak GPU memory of rank 0: {peak:.1f} of {total:.1f} GiB", flush=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Also of a run that was resumed when its training was complete already."""
        if trainer.is_global_zero and self.history.rows:
            with errors.warn_on_failure("drawing the curves"):
                curves.write_curves(self.history.rows, self.directory)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            curves.write_csv(self.history.rows, self.directory)

    def state_dict(self) -> dict[str, Any]:
        """The rows, and the open interval of all ranks. Collective."""
        loss, losses, _ = self._over_ranks(0.0) if self.interval.batches else (0.0, 0.0, 0.0)
        return {
            "rows": self.history.rows,
            "loss": loss,
            "batches": losses / self.accumulate,
            "lr": self.lr,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history.restore(state_dict["rows"])
        self.resumed_loss = state_dict["loss"]
        self.resumed_batches = state_dict["batches"]
        self.lr = state_dict["lr"]


def peak_memory(device: torch.device) -> dict[str, float]:
    """The most memory that this process has had so far, in GiB: of the host, and of its GPU.

    The host's is the resident set of the process itself, without its loader's workers; it is left
    out where the system does not tell it.
    """
    values = {}
    try:
        import resource
    except ImportError:  # on Windows
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB on Linux
        values["host_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    if device.type == "cuda":
        values["gpu_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return values


def _size(batch: Any) -> int:
    """Samples of a batch: the length of its first tensor."""
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return 1


def _stopping_reason(trainer: pl.Trainer) -> str:
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        reason = getattr(callback, "stopping_reason_message", None)  # of EarlyStopping
        if reason:
            return str(reason)
    return "trainer.should_stop was set"


def refuse_diverged_weights(model: pl.LightningModule, step: int) -> None:
    """Weights that are not finite stay so.

    A loss alone may be: a gradient scaler leaves such a step out.

    Raises:
        UserError: a trained weight is not finite.
    """
    for name, weights in model.named_parameters():
        if weights.requires_grad and not weights.isfinite().all():
            raise UserError(
                f"training diverged: at step {step} {name} has values that are not finite, "
                "and they stay so",
                "lower the learning rate or clip gradients, and train from the start with "
                "--resume never",
            )
