"""The parts of a run that are the same in every project: callbacks, loggers, resuming, the best
weights, testing and saving.

    with dist.session():
        run = Run(options, monitor=MONITOR, mode=MODE)
        data = run.resumable(Data(**vars(options)))
        trainer = pl.Trainer(
            callbacks=[*run.callbacks(), MyCallback()],
            logger=[*run.loggers(), MyLogger()],
            ...
        )
        run.train_test_save(trainer, model, data)
    run.finish()
"""

import functools
import os
import time
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from smlightning import errors, hub, saving
from smlightning.checkpoints import files
from smlightning.checkpoints.callback import BeforeHooks, Checkpoints
from smlightning.cluster import session
from smlightning.cluster.sharding import gather_weights
from smlightning.options import declared_options, values_of
from smlightning.reports import log
from smlightning.reports.lines import LogLines, MetricHistory
from smlightning.reports.profiler import NoProfiler
from smlightning.reports.progress import ProgressReport
from smlightning.training import rank_checks
from smlightning.training.buckets import BucketOrder
from smlightning.training.checks import check_complete, training_checks
from smlightning.training.hangs import HangTimeout
from smlightning.training.loaders import Loaders
from smlightning.training.loop import ValidationSteps
from smlightning.training.options import TrainerOptions
from smlightning.training.seeds import StepSeed


class Run:
    """One run of a project; make it within the session, and before data and model.

    Args:
        options: of the project.
        monitor: the validation metric that marks the best weights.
        mode: whether its highest or its lowest value is best.

    Attributes:
        profiler: does nothing, and takes less time than Lightning's default.
        outputs: the folder of curves and pictures.
        model_dir: the folder of the trained model.

    Raises:
        ClusterError: the ranks have other options or files.
    """

    def __init__(
        self, options: TrainerOptions, *, monitor: str, mode: Literal["max", "min"]
    ) -> None:
        self.started = time.perf_counter()
        self.options, self.monitor = options, monitor
        self.hang_timeout = HangTimeout(options.hang_seconds)
        rank_checks.check_start(options)
        hub.sign_in(session.current_cluster().local_rank, os.environ)
        log.quiet()
        pl.seed_everything(options.seed, verbose=False)
        self.outputs, self.model_dir = log.output_dirs(options.output_dir)
        self.profiler = NoProfiler()
        self.history = MetricHistory()
        self.loaders = Loaders(options.seed)
        self.checkpoints = Checkpoints(
            self.model_dir.parent / "checkpoints",
            values_of(options),
            options.checkpoint_minutes,
            options.checkpoint_steps,
            monitor=monitor,
            mode=mode,
            loaders=self.loaders,
            declared=declared_options(type(options)),
        )

    def resumable(self, data: pl.LightningDataModule) -> pl.LightningDataModule:
        """The data module, whose loaders now start where training is.

        Its methods return the loaders that Lightning iterates: a `RowLoader` for a DataLoader of
        rows, which the ranks divide, and for other training loaders a `Stream`. Random numbers in
        its ``setup`` are the same on all ranks.
        """
        return self.loaders.resumable(data)

    def precision(self, accelerator: str) -> Any:
        """The Trainer's ``precision`` for the option of that name; sets TF32 for this process.

        ``auto`` is bf16-mixed on a GPU that computes in it, else 16-mixed, or with ``fsdp``, which
        does not scale losses, 32-true. ``tf32`` is 32-true with matrix products in TF32.
        """
        wanted = self.options.precision
        torch.backends.cudnn.allow_tf32 = wanted == "tf32"  # torch's default: for convolutions
        torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
        if wanted not in ("auto", "tf32"):
            return wanted
        if wanted == "tf32" or accelerator != "gpu":
            return "32-true"
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed"
        return "32-true" if self.options.strategy == "fsdp" else "16-mixed"

    def gradient_clip_val(self, model: pl.LightningModule) -> float | None:
        """The Trainer's ``gradient_clip_val`` for the option of that name.

        None in manual optimization, where Lightning clips nothing and the model does it itself.
        """
        wanted = self.options.gradient_clip_val
        # without super().__init__(), which check_complete reports, the model lacks it
        if getattr(model, "automatic_optimization", True):
            return wanted
        if wanted and session.current_cluster().rank == 0:
            print(
                f"manual optimization: gradient_clip_val={wanted:g} is not applied; to clip, call "
                f"self.clip_gradients(optimizer, {wanted:g}) in training_step",
                flush=True,
            )
        return None

    def callbacks(self, data_divided: bool = True) -> list[pl.Callback]:
        """The callbacks, in the order that they need; yours follow.

        Args:
            data_divided: False if ranks are given the same data on purpose.
        """
        chosen = self.options
        return [
            BeforeHooks(self.checkpoints),
            self.hang_timeout,
            *training_checks(data_divided),
            StepSeed(chosen.seed),
            BucketOrder(),
            ValidationSteps(chosen.val_check_steps),
            ProgressReport(chosen.log_every, self.outputs, self.history),
            saving.SaveTrial(self.model_dir),
            self.checkpoints,
        ]

    def loggers(self) -> list[Any]:
        """The logger of the log's lines, curves and TensorBoard."""
        return [LogLines(self.history, self.outputs)]

    @functools.cached_property
    def resume_from(self) -> Path | None:
        """The checkpoint to resume from, once this run has its folder for itself. Collective.

        Raises:
            UserError: another run has the folder, or the checkpoint belongs to another run.
        """
        return self.checkpoints.resume(self.options.resume)

    def train_test_save(
        self, trainer: pl.Trainer, model: pl.LightningModule, data: pl.LightningDataModule
    ) -> None:
        """Train or resume, test the best weights, and save and draw them on rank 0. Collective.

        Raises:
            UserError: model or data lack what the best weights need; the checkpoint to resume from
                belongs to another run; or the model cannot be saved.
        """
        check_complete(model, data)
        trainer.fit(model, datamodule=data, ckpt_path=self.resume_from, weights_only=True)
        self.checkpoints.load_best_weights(model)
        trainer.test(model, datamodule=data, verbose=False)
        self.checkpoints.restore_best_weights(model)
        gather_weights(trainer)  # from shards; with DDP each rank has them all
        if trainer.is_global_zero:
            newest = files.newest_path(self.checkpoints.directory)
            saving.save(model, self.model_dir, newest, self.checkpoints.rerun)
            saved: Any = model
            if hasattr(saved, "draw"):
                with errors.warn_on_failure("Model.draw"):
                    saved.draw(self.outputs)
            seconds = f"{time.perf_counter() - self.started:.0f} s"
            places = {"time": seconds, "model": str(self.model_dir), "curves": str(self.outputs)}
            log.print_result(trainer.callback_metrics, self.monitor, places)

    def finish(self) -> None:
        """Mark the run as complete, after the session: the next one starts anew."""
        self.checkpoints.finish()
