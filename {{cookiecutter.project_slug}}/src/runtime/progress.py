"""How training goes: lines of a log, and the curves at the end."""

import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.utilities.model_helpers import is_overridden

from runtime import loop_state, ranks, report
from runtime.divided import leaves
from runtime.report import UserError

NOTHING = nullcontext()


def refuse_without_test(model: pl.LightningModule, data: pl.LightningDataModule) -> None:
    """Raises UserError where the test that follows training cannot be; Lightning would find out when training ends."""
    asked: Any = ((model, "test_step"), (data, "test_dataloader"))
    without = [f"{type(owner).__name__} has no {method}" for owner, method in asked if not is_overridden(method, owner)]
    if without:
        found = " and ".join(without)
        raise UserError(f"The best weights are tested when training ends, and {found}; add what is missing.")


class Reporter(pl.Callback, Logger):
    """Reports training: a line per interval and validation, and curves.

    It is one of the Trainer's loggers: whatever is logged is in the lines and curves, and what it measures reaches
    every logger. ``self.log`` in every step costs up to 0.3 ms a step; here a step costs one addition on the device,
    and numbers are read, summed over ranks and logged once per interval.

    Args:
        every: optimizer steps per interval.
        directory: where the curves go at the end of training.
    """

    name, version = "reporter", 0  # of the logger

    def __init__(self, every: int, directory: Path) -> None:
        self.every, self.directory = every, directory
        self.rows: list[dict[str, float]] = []
        self.loss: torch.Tensor | float = 0.0
        self.batches = self.samples = 0
        self.lr = math.nan
        self.told = False  # that the model logs a train/loss, too
        self.open = (0.0, 0.0)  # loss and global batches of an interval that a checkpoint cut in two

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.trainer = trainer
        profiler = trainer.profiler  # type: ignore[attr-defined]
        if type(profiler) is PassThroughProfiler:  # its context managers around 70 calls a step measure nothing
            vars(profiler)["profile"] = lambda _: NOTHING
        if self not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self]

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning would find out after an epoch, or with ``strict=False`` never."""
        logged = trainer.callback_metrics
        for stopper in trainer.early_stopping_callbacks:
            kinds = {name.partition("/")[0] for name in logged}  # train/… is not logged yet
            if stopper.monitor not in logged and stopper.monitor.partition("/")[0] in kinds:
                raise UserError(
                    f"EarlyStopping waits for {stopper.monitor}, but validation logged {', '.join(sorted(logged))}; "
                    "name one of these."
                )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.total, self.accumulate = int(trainer.estimated_stepping_batches), trainer.accumulate_grad_batches
        if trainer.is_global_zero:
            datamodule: Any = getattr(trainer, "datamodule", None)
            loader, parts = trainer.train_dataloader, trainer.world_size * self.accumulate
            per_rank = getattr(datamodule, "batch_size", None) or getattr(loader, "batch_size", None)
            if whole := getattr(getattr(loader, "sampler", None), "global_batch", 0):  # runtime/batches.py's
                per_rank = whole // parts
            ranks_and_batches = f"world_size={trainer.world_size} x accumulate_grad_batches={self.accumulate}"
            if per_rank:
                ranks_and_batches = f"global_batch={per_rank * parts} ({per_rank} per rank x {ranks_and_batches})"
            print(
                f"{ranks_and_batches} max_lr={trainer.optimizers[0].defaults.get('lr', math.nan):g} steps={self.total} "
                f"parameters={sum(p.numel() for p in pl_module.parameters())} precision={trainer.precision}",
                flush=True,
            )
        self._restart_interval()
        self.loss = self.open[0] * trainer.world_size if trainer.is_global_zero else 0.0
        self.batches = round(self.open[1] * self.accumulate)

    def _restart_interval(self) -> None:
        self.loss, self.batches, self.samples = 0.0, 0, 0
        self.since = time.perf_counter()

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]  # at its end the scheduler has set the next step's

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss")
        if loss is not None:  # training_step may skip a batch
            self.loss = self.loss + loss.detach()
            self.batches += 1
        self.samples += next((len(x) for x in leaves(batch) if isinstance(x, torch.Tensor) and x.ndim), 1)
        complete = (batch_idx + 1) % self.accumulate == 0 or trainer.is_last_batch
        if complete and (loop_state.steps(trainer) + 1) % self.every == 0:
            self._close_interval()

    def _close_interval(self, steps_ago: int = 0) -> None:
        """Log an interval. Collective: every rank gets here at the same step."""
        if not self.batches:
            return
        seconds = time.perf_counter() - self.since
        values = {
            "train/loss": float(self._mean_loss()) * self.accumulate / self.batches,
            "lr": self.lr,
            "samples_per_second": self.samples * self.trainer.world_size / seconds,
        }
        index = loop_state.steps(self.trainer) - steps_ago  # as Lightning numbers steps, from 0
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=index)
        if not math.isfinite(values["train/loss"]):
            self._refuse_divergence(index + 1)
        self._restart_interval()

    def _refuse_divergence(self, step: int) -> None:
        """Weights that are not finite stay so. A loss alone may be: a gradient scaler leaves such a step out."""
        for name, weights in self.trainer.lightning_module.named_parameters():
            if weights.requires_grad and not weights.isfinite().all():
                raise UserError(
                    f"Training diverged: at step {step} {name} has values that are not finite, and they stay so; "
                    "lower the learning rate or clip gradients, and train from the start with --resume never."
                )

    def _mean_loss(self) -> torch.Tensor:
        """The interval's sum of global batches' mean losses. Collective."""
        return ranks.all_sum(torch.as_tensor(self.loss, dtype=torch.float32)) / self.trainer.world_size

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._close_interval()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close_interval(steps_ago=1)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Print a line, and keep it for the curves. Lightning calls it on every rank.

        Args:
            step: in training, the number of optimizer steps before the one that the values are of.
        """
        trainer = self.trainer
        values = {name: float(value) for name, value in metrics.items() if name not in ("step", "epoch")}
        if not trainer.is_global_zero or not values:
            return
        if "train/loss" in values and "samples_per_second" not in values and not self.told:
            said = "the model logs a train/loss beside the interval's mean, which is logged for it"
            print(f"warning: {said}; give the model's own another name", file=sys.stderr)
            self.told = True
        fitting = trainer.state.fn == "fit"
        row = {"step": step + 1 if fitting and step is not None else loop_state.steps(trainer)}
        row["epoch"] = trainer.current_epoch + fitting
        if trainer.state.fn != "validate":  # which has nothing to do with the curves of training
            if not self.rows or self.rows[-1]["step"] != row["step"]:
                self.rows.append(dict(row))
            self.rows[-1] |= values
        print(report.format_metrics({**row, **values}), flush=True)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass  # abstract in Logger

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.should_stop and trainer.is_global_zero and loop_state.steps(trainer) < self.total:
            every: Any = trainer.callbacks  # type: ignore[attr-defined]
            reasons = filter(None, (getattr(callback, "stopping_reason_message", None) for callback in every))
            reason = next(reasons, "trainer.should_stop was set")
            print(f"training ended early, at step {loop_state.steps(trainer)} of {self.total}: {reason}", flush=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Also of a run that was resumed when its training was complete already."""
        if trainer.is_global_zero and self.rows:
            with report.optional("drawing the curves"):
                report.write_curves(self.rows, self.directory)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            report.write_csv(self.rows, self.directory)

    def state_dict(self) -> dict[str, Any]:
        """Collective: the interval that is open when a checkpoint is made belongs to all ranks."""
        loss = float(self._mean_loss()) if self.batches else 0.0
        return {"rows": self.rows, "loss": loss, "batches": self.batches / self.accumulate, "lr": self.lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.open = state_dict["rows"], (state_dict["loss"], state_dict["batches"])
        self.lr = state_dict.get("lr", math.nan)  # checkpoints of older versions have none
