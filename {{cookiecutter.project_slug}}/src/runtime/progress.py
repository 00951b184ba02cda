"""How training goes: a live bar or lines of a log, what the logger gets, and the curves at the end."""

import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from runtime import ranks, report

# Trainer features that this file and checkpoints.py replace. Its sampler is not among them: it divides the batches of
# an ordinary DataLoader among the ranks, and leaves alone what batches.py makes.
DISABLED_FEATURES: Any = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
DISABLED_FEATURES |= {"num_sanity_val_steps": 0}


class Reporter(pl.Callback):
    """Says how training goes: a live bar in a terminal, a stable line per interval anywhere else; keeps the curves.

    Lightning's own bar and ``self.log`` in every step cost up to 0.6 ms a step; here a step costs one addition on the
    device, and numbers are read, summed over ranks and printed once per interval.

    Args:
        every: optimizer steps per interval.
        directory: where the curves go at the end of training.
        monitor: the validation metric that the bar shows beside the training loss.
    """

    def __init__(self, every: int, directory: Path, monitor: str = "val/loss") -> None:
        self.every, self.directory, self.monitor = every, directory, monitor
        self.rows: list[dict[str, float]] = []
        self.bar: Any = None
        self.loss: torch.Tensor | float = 0.0
        self.open = (0.0, 0.0)  # of an interval that a checkpoint cut in two

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.live = trainer.is_global_zero and sys.stdout.isatty() and sys.stderr.isatty()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.total = int(trainer.estimated_stepping_batches)
        self.rank_batch = getattr(trainer.datamodule, "batch_size", 1)  # type: ignore[attr-defined]
        self.accumulate = trainer.accumulate_grad_batches
        self.global_batch = self.rank_batch * trainer.world_size * self.accumulate
        if trainer.is_global_zero:
            lr = trainer.optimizers[0].defaults["lr"]
            size = sum(p.numel() for p in pl_module.parameters())
            print(
                f"global_batch={self.global_batch} ({self.rank_batch} per rank x world_size={trainer.world_size} x "
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}) max_lr={lr:g} steps={self.total} "
                f"parameters={size} precision={trainer.precision}",
                flush=True,
            )
        self.bar = self._start_bar() if self.live else None
        self._restart_interval(trainer)
        self.loss = self.open[0] * trainer.world_size if trainer.is_global_zero else 0.0
        self.batches = round(self.open[1] * self.accumulate)

    def _start_bar(self) -> Any:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left",
            TimeRemainingColumn(), TextColumn("{task.fields[metrics]}"),
        )  # fmt: skip
        bar = Progress(*columns, refresh_per_second=4)
        self.task = bar.add_task("train", total=self.total, epoch=1, metrics="")
        bar.start()
        return bar

    def _restart_interval(self, trainer: pl.Trainer) -> None:
        self.loss = 0.0
        self.batches, self.since, self.at = 0, time.perf_counter(), trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.loss = self.loss + loss.detach()
        self.batches += 1
        if self.bar:
            self.bar.update(self.task, completed=trainer.global_step, epoch=trainer.current_epoch + 1)
        if trainer.global_step % self.every == 0 and trainer.global_step > self.at:
            self._interval(trainer)

    def _interval(self, trainer: pl.Trainer) -> None:
        """Close an interval. Collective: every rank gets here at the same step."""
        if not self.batches:
            return
        value = float(self._mean()) * self.accumulate / self.batches
        seconds = time.perf_counter() - self.since
        speed = (trainer.global_step - self.at) * self.global_batch / seconds
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        self._record(trainer, {"train/loss": value, "lr": lr, "samples_per_second": speed})
        self._restart_interval(trainer)

    def _mean(self) -> torch.Tensor:
        """The interval's sum of global batches' mean losses. Collective."""
        return ranks.all_sum(torch.as_tensor(self.loss, dtype=torch.float32)) / ranks.cluster().world_size

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._interval(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._interval(trainer)
            self._record(trainer, _metrics(trainer, "val/"))
            self.since = time.perf_counter()

    def _record(self, trainer: pl.Trainer, values: dict[str, float]) -> None:
        if not trainer.is_global_zero:
            return
        row = {"step": trainer.global_step, "epoch": trainer.current_epoch + 1, **values}
        self.rows.append(row)
        if trainer.logger:
            trainer.logger.log_metrics(values, step=trainer.global_step)
        if self.bar:
            latest = {k: v for r in self.rows for k, v in r.items() if k in ("train/loss", self.monitor)}
            self.bar.update(self.task, metrics=report.format_metrics(latest))
        else:
            print(report.format_metrics(row), flush=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Also of a run that was gone on with when its training was complete already."""
        self._stop_bar()
        if trainer.is_global_zero and self.rows:
            report.write_curves(self.rows, self.directory)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def state_dict(self) -> dict[str, Any]:
        """Collective: the interval that is open when a checkpoint is made belongs to all ranks."""
        if not self.batches:
            return {"rows": self.rows, "loss": 0.0, "batches": 0.0}
        mean = float(self._mean())
        return {"rows": self.rows, "loss": mean, "batches": self.batches / self.accumulate}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.open = state_dict["rows"], (state_dict["loss"], state_dict["batches"])


def _metrics(trainer: pl.Trainer, prefix: str) -> dict[str, float]:
    return {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(prefix)}
