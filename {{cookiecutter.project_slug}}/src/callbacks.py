"""What happens around the training steps: progress, curves, randomness, checkpoints."""

import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

import dist
import report

# Options that may differ between a run and its continuation.
FREE_OPTIONS = frozenset(
    {"resume", "output_dir", "data_dir", "num_workers", "log_every", "compile", "batch_size", "accumulate"}
)


class Reporter(pl.Callback):
    """Says how training goes: a live bar in a terminal, a stable line per interval anywhere else; keeps the curves.

    Lightning's own bar and ``self.log`` in every step cost up to 0.6 ms a step; here a step costs one addition on the
    device, and numbers are read, summed over ranks and printed once per interval.

    Args:
        every: optimizer steps per interval.
        directory: where the curves go at the end of training.
    """

    def __init__(self, every: int, directory: Path) -> None:
        self.every, self.directory = every, directory
        self.rows: list[dict[str, float]] = []
        self.bar: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.live = trainer.is_global_zero and sys.stdout.isatty() and sys.stderr.isatty()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.total = int(trainer.estimated_stepping_batches)
        self.rank_batch = getattr(trainer.datamodule, "batch_size", 1)  # type: ignore[attr-defined]
        self.global_batch = self.rank_batch * trainer.world_size * trainer.accumulate_grad_batches
        if trainer.is_global_zero:
            lr = trainer.optimizers[0].defaults["lr"]
            size = sum(p.numel() for p in pl_module.parameters())
            print(
                f"global_batch={self.global_batch} ({self.rank_batch} per rank x world_size={trainer.world_size} x "
                f"accumulate={trainer.accumulate_grad_batches}) lr={lr:g} steps={self.total} parameters={size} "
                f"precision={trainer.precision}",
                flush=True,
            )
        self.bar = self._start_bar() if self.live else None
        self._restart_interval(trainer)

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
        self.loss: torch.Tensor | float = 0.0
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
        mean = dist.all_sum(torch.as_tensor(self.loss, device=trainer.strategy.root_device)) / trainer.world_size
        value = float(mean) * trainer.accumulate_grad_batches / self.batches
        seconds = time.perf_counter() - self.since
        speed = (trainer.global_step - self.at) * self.global_batch / seconds
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        self._record(trainer, {"train/loss": value, "lr": lr, "samples_per_second": speed})
        self._restart_interval(trainer)

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
            latest = {k: v for r in self.rows for k, v in r.items() if k in ("train/loss", "val/accuracy")}
            self.bar.update(self.task, metrics=report.line(latest))
        else:
            print(report.line(row), flush=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
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
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]


class Randomness(pl.Callback):
    """Makes what is drawn in a step (dropout, say) a function of (seed, step, rank), not of the steps before it.

    So a run that is resumed in the middle of an epoch draws what it would have drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        micro_step = trainer.fit_loop.epoch_loop.total_batch_idx  # counts what accumulation does not step for
        torch.manual_seed((self.seed * 1_000_003 + micro_step) * 65_537 + trainer.global_rank)


class Checkpoints(pl.Callback):
    """Keeps what a run needs to go on (``last.ckpt``) and its best weights (``best.pt``); rank 0 writes, atomically.

    Args:
        directory: on SageMaker the folder it syncs with S3 and restores on every host.
        options: of this run; a checkpoint of other options is not gone on with.
    """

    def __init__(self, directory: Path, options: dict[str, Any]) -> None:
        self.last, self.best = directory / "last.ckpt", directory / "best.pt"
        self.options = {k: v for k, v in options.items() if k not in FREE_OPTIONS}
        self.best_score, self.total = -1.0, 0

    def resume(self, wanted: str) -> Path | None:
        """The checkpoint to go on from: ``auto``, ``never`` or a path.

        Raises:
            UserError: the path holds no checkpoint.
        """
        if wanted not in ("auto", "never") and not Path(wanted).is_file():
            raise report.UserError(f"--resume {wanted!r}: no such checkpoint; expected auto, never or a file.")
        path = self.last if wanted == "auto" else Path(wanted)
        if wanted == "never" or not path.is_file():
            return None
        state = torch.load(path, weights_only=True, mmap=True)["callbacks"].get(self.state_key, {})
        if wanted == "auto":
            differing = [k for k, v in self.options.items() if state["options"].get(k) != v]
            if differing or state["step"] >= state["total"]:
                why = f"its {differing[0]} differs" if differing else "that run is finished"
                if dist.get_global_rank() == 0:
                    print(f"resume: not from {path}, {why}; training from the start", flush=True)
                return None
        if dist.get_global_rank() == 0:
            print(f"resume: from {path}, step {state['step']} of {state['total']}", flush=True)
        return path

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.total = int(trainer.estimated_stepping_batches)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        score = float(trainer.callback_metrics.get("val/accuracy", 0.0))  # the same on every rank
        if trainer.state.fn == "fit" and score > self.best_score:
            self.best_score = score
            if trainer.is_global_zero:
                with report.replacing(self.best) as path:
                    torch.save(pl_module.state_dict(), path)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step
        temporary = self.last.with_suffix(".tmp")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            temporary.replace(self.last)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Test the best weights, not the last: rank 0 reads them, and a sum with the others' zeros hands them on."""
        if trainer.is_global_zero and self.best_score >= 0:  # -1: training ended before the first validation
            pl_module.load_state_dict(torch.load(self.best, weights_only=True, map_location=pl_module.device))
        with torch.no_grad():
            for tensor in pl_module.state_dict().values():
                tensor.copy_(dist.all_sum(tensor if trainer.is_global_zero else torch.zeros_like(tensor)))

    def state_dict(self) -> dict[str, Any]:
        return {"options": self.options, "best_score": self.best_score, "step": self.step, "total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score = state_dict["best_score"]


def _metrics(trainer: pl.Trainer, prefix: str) -> dict[str, float]:
    return {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(prefix)}
