"""When a run saves, stops and resumes: after the same batches on every rank, when all hooks of one
step, validation or epoch are done and those of the next have not begun.

A resumed run continues exactly: no random state is kept, since order, augmentation and dropout are
functions of numbers (data/batches.py, data/exact.py, training/seeds.py).
"""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from smlightning import errors
from smlightning.checkpoints import files, restore, resume, values
from smlightning.checkpoints.agreement import Agreement
from smlightning.checkpoints.attributes import Attributes
from smlightning.checkpoints.plugin import CheckpointPlugin
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.resume import ResumePoint
from smlightning.checkpoints.unsupported import (
    check_trainer,
    start_averages,
    warn_of_lost_folders,
)
from smlightning.checkpoints.validated import Validated, no_batch
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.cluster import collectives, ending, session, signals
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.cluster.shards import weights_like
from smlightning.data.exact import resumes_exactly
from smlightning.errors import UserError
from smlightning.options import Option
from smlightning.training import hangs, loop
from smlightning.training.loaders import Loaders, all_loaders
from smlightning.training.rank_checks import equally_many

RERUN = "start the same command again"


class BeforeHooks(pl.Callback):
    """Calls `Checkpoints` before any other hook of a step, a validation, an epoch or the end.

    Lightning calls the model's hooks after all callbacks' hooks of that name, so a callback cannot
    come last.
    """

    def __init__(self, checkpoints: "Checkpoints") -> None:
        self.checkpoints = checkpoints

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        first: pl.Callback = trainer.callbacks[0]  # type: ignore[attr-defined]
        if first is not self:
            raise UserError(
                f"{type(first).__name__} comes before run.callbacks(), so a checkpoint could be "
                "taken in the middle of its hooks",
                "pass Trainer(callbacks=[*run.callbacks(), ...])",
            )

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self.checkpoints.before_batch(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.checkpoints.before_epoch(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.checkpoints.before_validation(trainer)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.checkpoints.after_validation_batches(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.checkpoints.before_end(trainer)


class Checkpoints(Checkpoint):
    """Saves, resumes and stops a run, and keeps its best weights.

    As one of Lightning's Checkpoints it comes after other callbacks, and the Trainer adds no
    ModelCheckpoint. `BeforeHooks` comes before them.

    Args:
        directory: on SageMaker the folder that it syncs with S3 and restores on every host.
        options: of this run, plain values. The product of ``batch_size``,
            ``accumulate_grad_batches`` and the world size has to stay the same in a resumed run.
        minutes: between two checkpoints.
        steps: between two checkpoints; 0: only by minutes.
        monitor: the validation metric that marks the best weights.
        mode: whether its ``max`` or its ``min`` is best.
        loaders: those of training, whose states a checkpoint holds.
        declared: the options by name: their defaults, and which may differ in a resumed run.
    """

    best_model_path = ""  # Lightning reads the first Checkpoint's

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, Any],
        minutes: float = 5.0,
        steps: int = 0,
        *,
        monitor: str,
        mode: Literal["max", "min"] = "max",
        loaders: Loaders,
        declared: Mapping[str, Option] | None = None,
    ) -> None:
        self.directory, self.steps = directory, steps
        self.loaders = loaders
        self.declared = declared or {}
        world_size = session.current_cluster().world_size
        self.identity = resume.RunIdentity.of(options, self.declared, world_size)
        is_auto = options.get("resume") == "auto"
        self.rerun = RERUN if is_auto else f"{RERUN} with --resume auto"
        self.choice: restore.Choice | None = None  # after `resume`
        self.writer = CheckpointWriter(directory)
        self.agreement = Agreement(minutes)
        self.equally_many = True  # batches of this evaluation on every rank
        self.position = Position()
        self.data = ""  # fingerprint of the data
        self.optimizers: list[str] = []  # names of their classes
        self.validated = Validated(monitor, mode)
        self.attributes = Attributes()
        self.resumes_within_epoch = False  # and has not trained yet
        self.is_inexact = False  # a loader begins its epoch anew after a resume
        self.between_steps = True  # no gradients are accumulated, and no step is half done

    # For train.py

    def resume(self, wanted: str) -> Path | None:
        """The checkpoint to resume from, ``auto``, ``never`` or a path. Collective.

        Raises:
            UserError: as `restore.choose` does.
        """
        self.choice = restore.choose(
            wanted, self.directory, self.identity, self.declared, self.state_key
        )
        return self.point.path if self.point else None

    def load_best_weights(self, model: pl.LightningModule) -> None:
        """Load the best weights; keep the last ones if no validation was good. Collective."""
        self.validated.load(model, self.writer, self.point)

    def restore_best_weights(self, model: pl.LightningModule) -> None:
        """Load the tested parameters again, which hooks of the test may change. Collective."""
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self.validated.restore(model, self.writer, names)

    def finish(self) -> None:
        """The run is complete, artifacts included, on every rank: the next one starts anew.

        Raises:
            UserError: the folder could not be marked, or no validation was finite.
        """
        signals.complete()  # or a run that a signal stops could be marked here
        self.validated.check_finite()
        if session.current_cluster().rank == 0:
            files.mark(self.directory, files.FINISHED, f"free some space and {errors.RESUME}")
            if self.choice:
                self.choice.lock.release()

    @property
    def point(self) -> ResumePoint | None:
        """Where the run resumes; None if it starts anew."""
        return self.choice.point if self.choice else None

    # Resuming

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_trainer(trainer, stage)
        self.validated.best.check_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
        signals.replace_lightning_signal_handlers(trainer)
        signals.defer(f"{self.rerun} to resume")
        if stage == "fit":
            warn_of_lost_folders(trainer, self.directory)
            dataset = str(self.identity.options.get("dataset", ""))
            self.data = restore.data_of(trainer, dataset)
        strategy = trainer.strategy
        if not isinstance(strategy.checkpoint_io, CheckpointPlugin):
            shard_size = strategy.shard_size if isinstance(strategy, ShardedStrategy) else 1
            number = self.choice.number if self.choice else None
            self.writer = CheckpointWriter(self.directory, number, shard_size)
            with_best = self.point is None or self.point.with_best
            strategy.checkpoint_io = CheckpointPlugin(
                self.writer, strategy.checkpoint_io, with_best, lambda: _present(trainer)
            )

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue from the chosen checkpoint, whose weights are loaded.

        A checkpoint that the caller passes to an evaluation changes nothing.
        """
        if trainer.state.fn != "fit" or not self.point:
            return
        position = Position(**checkpoint["position"])
        self.position = replace(position, complete=self.point.complete)
        resume.check_length(self.position, trainer.max_steps)
        state = checkpoint["callbacks"][self.state_key]
        restore.check_data(state["data"], self.data)
        self.optimizers = state["optimizers"]
        self.attributes.resumed = checkpoint.pop("attributes")
        epoch, _ = self.position.next_start()
        batches, _ = self.position.rank_counts(trainer.accumulate_grad_batches)
        same_ranks = self.position.world_size == trainer.world_size
        data = type(trainer.datamodule).__qualname__  # type: ignore[attr-defined]
        self.loaders.resume(
            checkpoint.pop("loaders"), (epoch, batches), same_ranks, checkpoint.get(data, {})
        )
        weights = checkpoint.pop("best_weights")
        if not self.validated.resume(state["best"], self.point):
            weights = None
        if weights is not None and self.writer.is_sharded:
            weights = weights_like(weights, pl_module.state_dict())
        self.writer.resume_from(self.position, weights)
        self.resumes_within_epoch = self.position.next_start()[1] > 0
        restore.set_loops(checkpoint, self.position, trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The optimizers exist, and their states are not restored yet."""
        optimizers = [type(optimizer).__name__ for optimizer in trainer.optimizers]
        if self.optimizers:
            resume.check_optimizers(self.optimizers, optimizers)
        self.optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        return {
            "options": self.identity.options,
            "global_batch": self.identity.global_batch,
            "data": self.data,
            "optimizers": self.optimizers,
            "best": self.validated.state(),
        }

    # Training

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.validated.sanity_check(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.loaders.begin(trainer)
        states = [optimizer.state_dict() for optimizer in trainer.optimizers]
        values.encoded({"state_dict": pl_module.state_dict(), "optimizer_states": states})
        total = trainer.estimated_stepping_batches
        if total < 0:
            raise UserError(
                "The training data has no length, so its number of steps is not known",
                "pass --max_steps",
            )
        then = self.position.batches_per_epoch
        loaders = all_loaders(trainer.train_dataloader)
        self.is_inexact = self.point is not None and not all(map(resumes_exactly, loaders))
        if self.is_inexact and trainer.is_global_zero:
            start = replace(self.position, validation_next=False).next_start()
            print(f"resume: {resume.data_start(*start)}", flush=True)
        batches = _global_batches(trainer)
        if then not in (0, batches):
            raise UserError(
                f"The checkpoint has {then} global batches per epoch, now there are {batches}",
                "restore the data and its loader, or train from the start with --resume never",
            )
        self.position = replace(
            self.position,
            batches_per_epoch=batches,
            total_steps=int(total),
            accumulate=trainer.accumulate_grad_batches,
            world_size=trainer.world_size,
        )
        self.agreement.saved()
        self._agree(trainer)
        if self.agreement.stop:
            self._stop(trainer)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._agree(trainer)
        last = trainer.is_last_batch
        complete = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or last
        if not complete:  # gradients are being accumulated, which no checkpoint holds
            return
        self.between_steps = True
        self.position = self.position.after_batch(
            epoch=trainer.current_epoch,
            rank_batches=batch_idx + 1,
            all_rank_batches=loop.batches_trained(trainer),
            last=last,
        )
        loop.check_count(trainer, self.position.step)
        if self.position.step == 1 and trainer.is_global_zero:
            resume.begin_anew(self.directory)  # not before: a mistake in model or data ends the run
        if self.steps and self.position.step % self.steps == 0:
            self.agreement.save = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_last_batch:
            self.loaders.end_epoch(trainer)
        elif not trainer.should_stop and trainer.global_step != trainer.max_steps:
            error = UserError(
                f"The length of the training loader is {trainer.num_training_batches} batches, and "
                f"it ended after {loop.batches_of_epoch(trainer)}, so no epoch is complete and "
                "none is validated",
                "let __len__ count what this rank reads: a stream whose rows the ranks divide "
                "has to divide its length, too",
            )
            # Lightning left the epoch of the resume early, where such a stream may continue.
            if not self.is_inexact:
                raise error
            if trainer.is_global_zero:
                print(f"warning: {error}", flush=True)
        self.position = self.position.after_epoch()
        self.agreement.save = True
        loop.end_restart(trainer)

    # Called by BeforeHooks, on every rank

    def before_batch(self, trainer: pl.Trainer) -> None:
        self.attributes.begin(trainer)
        if self.resumes_within_epoch:
            loop.continue_epoch(trainer)
            self.resumes_within_epoch = False
        if self.between_steps:
            self._take(trainer)
        self.between_steps = False

    def before_epoch(self, trainer: pl.Trainer) -> None:
        """Always save the end of the epoch before, if another checkpoint is being written, too."""
        self.attributes.begin(trainer)
        self.attributes.begin_epoch(trainer)
        # A loader that is made anew may have another length.
        self.position = replace(self.position, batches_per_epoch=_global_batches(trainer))
        self._take(trainer, wait_for_last=self.agreement.save)

    def before_validation(self, trainer: pl.Trainer) -> None:
        """Copy the state at least: a stop within the validation writes this copy.

        Within it, metrics are half summed up, and averages may be in the place of weights.
        """
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.attributes.begin(trainer)
        start_averages(trainer)
        if self.between_steps:
            self.position = replace(self.position, validation_next=True)
            self._take(trainer, hold=True)

    def after_validation_batches(self, trainer: pl.Trainer) -> None:
        """Copy the validated weights, before hooks may exchange them and before their score."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.writer.keep_validated(trainer.lightning_module.state_dict())

    def before_end(self, trainer: pl.Trainer) -> None:
        start_averages(trainer)
        self.position = replace(self.position, complete=True)
        if self.position.step:
            self._save(trainer, wait=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning ends a training without a batch without an error."""
        if not self.position.step and trainer.max_steps:
            raise no_batch("training", trainer.train_dataloader)

    # Evaluation

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.equally_many = equally_many(trainer.val_dataloaders)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.equally_many = equally_many(trainer.test_dataloaders)

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.sanity_checking:
            return
        self._agree(trainer)
        if not self.agreement.stop:
            return
        if trainer.state.fn == "fit":
            self._write_held()
        self._stop(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.position = replace(self.position, validation_next=False)
        try:
            self.validated.compare(trainer, self.position, self.writer)
        except UserError:  # on every rank: a run with another MONITOR continues from here
            self._write_held()
            raise

    def on_test_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        *_: Any,
    ) -> None:
        self.validated.before_test(pl_module, self.writer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "test" and not sum(trainer.num_test_batches):
            raise no_batch("test", trainer.test_dataloaders)
        if stage != "fit":
            signals.exit_on_signal()  # the rest is done by rank 0 only

    # Saving and stopping

    def _agree(self, trainer: pl.Trainer) -> None:
        """Agree whether to stop or to save; leave if a checkpoint failed. Collective."""
        if not trainer.training and not self.equally_many:
            return
        if self.agreement.ask(trainer, self.writer.failed()):
            self._fail()

    def _take(
        self, trainer: pl.Trainer, *, wait_for_last: bool = False, hold: bool = False
    ) -> None:
        """Save if a checkpoint is due; save and leave if the run is stopped. Collective.

        Args:
            wait_for_last: while another checkpoint is being written; else leave this one out.
            hold: copy the state if no checkpoint is due.
        """
        agreement = self.agreement
        is_due = agreement.save or agreement.stop
        if self.position.step and (is_due or hold):
            if agreement.stop or wait_for_last or not collectives.any_rank(self.writer.busy()):
                self._save(trainer, write=is_due, wait=agreement.stop)
            elif agreement.save:
                agreement.saved()
        if agreement.stop:
            self._stop(trainer)

    def _save(self, trainer: pl.Trainer, write: bool = True, wait: bool = False) -> None:
        """Copy the state at ``position``, after the checkpoint before is written. Collective.

        Args:
            write: the copy, while training goes on.
            wait: return when it is on disk.
        """
        with hangs.slow():
            self._wait_until_written()
            state = {
                **loop.state(trainer),
                "attributes": self.attributes.state(trainer),
                "loaders": self.loaders.state(trainer, self.position.rank_batches),
            }
            weights = trainer.lightning_module.named_parameters()
            trained = [name for name, weight in weights if weight.requires_grad]
            self.writer.hold(state, self.position, trained)
            if write:
                self.writer.write()
                self.agreement.saved()
            if wait:
                self._wait_until_written()

    def _write_held(self) -> None:
        """Write the copy from before this validation. Collective."""
        with hangs.slow():
            self._wait_until_written()
            self.writer.write()
            self._wait_until_written()

    def _wait_until_written(self) -> None:
        """Wait for the checkpoint before. Collective, so that a lost rank is noticed."""
        while collectives.any_rank(self.writer.busy()):
            time.sleep(0.01)
        if collectives.any_rank(self.writer.failed()):
            self._fail()

    def _fail(self) -> None:
        """A checkpoint could not be written: the rank that failed says why, and all leave."""
        self.writer.finish()  # raises the error there
        # session() asks that rank for its error.
        raise torch.distributed.DistNetworkError("another rank could not write a checkpoint")

    def _stop(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            # A checkpoint of another folder is not this run's.
            written = self.position.step and files.numbered(self.directory)
            advice = f"{self.rerun} to resume" if written else RERUN
            print(
                f"stopped by {signals.name()} at {self.writer.written or self.position}; {advice}",
                file=sys.stderr,
                flush=True,
            )
        raise ending.Stopped


def _present(trainer: pl.Trainer) -> dict[str, Any]:
    """The states of callbacks and data module at their places in a checkpoint. Collective."""
    every: Any = trainer
    data = every.datamodule
    states = {each.state_key: each.state_dict() for each in every.callbacks}
    return {"callbacks": states, type(data).__qualname__: data.state_dict()}


def _global_batches(trainer: pl.Trainer) -> int:
    """Global batches of an epoch; 0 if the data has no length."""
    if math.isinf(trainer.num_training_batches):
        return 0
    return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
