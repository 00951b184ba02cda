"""When a run saves, stops and resumes: the same batches on every rank.

Rank 0 writes; where the strategy divides the weights, every rank writes its part.

A resumed run continues exactly: no random state is kept, since order, augmentation and dropout are
functions of numbers (data/batches.py, data/draws.py, training/seeds.py).
"""

import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    Checkpoint,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from smlightning.checkpoints import files, resume
from smlightning.checkpoints.agreement import Agreement, Votes
from smlightning.checkpoints.best import Best
from smlightning.checkpoints.lock import lock
from smlightning.checkpoints.plugin import CheckpointPlugin
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.reader import ShardFiles
from smlightning.checkpoints.snapshot import snapshot
from smlightning.checkpoints.writer import CheckpointWriter, ShardWriter
from smlightning.cluster import collectives, session, signals
from smlightning.cluster.parts import weights_like
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.data.stateful import resumes_exactly
from smlightning.errors import UserError
from smlightning.options import Option
from smlightning.training import loop, watchdog
from smlightning.training.rank_checks import equal_on_ranks, equally_many

RERUN = "start the same command again"

# Callbacks of Lightning that are refused: what they would do, and what to use.
UNSUPPORTED: tuple[tuple[tuple[type, ...], str, str], ...] = (
    (
        (LearningRateFinder, BatchSizeFinder),
        "would change an option that a resumed run does not know of",
        "use pytorch_lightning.tuner.Tuner with a Trainer of its own, as in docs/how_to.md, and "
        "pass what it finds as an option",
    ),
    (
        (GradientAccumulationScheduler,),
        "changes the global batch within a run, and with it what a resumed one would go on with",
        "set --accumulate_grad_batches for all of the run",
    ),
    (
        (StochasticWeightAveraging,),
        "averages weights that no validation has seen, after the last one",
        "use EMAWeightAveraging or WeightAveraging, whose averages are validated",
    ),
    (
        (ModelPruning,),
        "gives weights other names within a run, under which the best ones are not found again",
        "prune the saved model, and train that anew",
    ),
)


class Checkpoints(Checkpoint):
    """Saves, resumes and stops a run, and keeps its best weights.

    As a Checkpoint of Lightning's it comes after other callbacks, and the Trainer adds no
    ModelCheckpoint.

    Args:
        directory: on SageMaker the folder it syncs with S3 and restores on every host; rank 0's is
            enough.
        options: of this run, plain values. The product of ``batch_size``,
            ``accumulate_grad_batches`` and the world size has to stay the same in a resumed run.
        minutes: between two checkpoints.
        steps: between two checkpoints; 0: by minutes alone.
        monitor: the validation metric that says which weights are best.
        mode: whether its ``max`` or its ``min`` is best; UserError for another.
        declared: the options by their names: their defaults, and which may differ in a resumed run.
    """

    best_model_path = ""  # Lightning asks the first Checkpoint for it

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, Any],
        minutes: float = 5.0,
        steps: int = 0,
        *,
        monitor: str,
        mode: Literal["max", "min"] = "max",
        declared: Mapping[str, Option] | None = None,
    ) -> None:
        self.directory, self.minutes, self.steps = directory, minutes, steps
        self.declared = declared or {}
        world_size = session.current_cluster().world_size
        self.run = resume.RunIdentity.of(options, self.declared, world_size)
        by_itself = options.get("resume") == "auto"
        self.rerun = RERUN if by_itself else f"{RERUN} with --resume auto"
        self.best = Best(monitor, mode)
        self.position = Position()
        self.data = ""  # fingerprint of the data
        self.optimizers: list[str] = []  # names of their classes
        self.averages: dict[str, Any] | None = None  # weights that were validated, if averaged
        self.resume_point: resume.ResumePoint | None = None
        self.shard_files = ShardFiles()  # of that one's folder
        self.writer = CheckpointWriter(directory)
        self.agreement = Agreement()
        self.saved_at = time.monotonic()
        self.due = self.stopping = False  # on every rank alike
        self.equally_many = True  # batches of this evaluation on every rank
        self.validated = False  # since this process began to train

    # For train.py

    def resume(self, wanted: str) -> Path | None:
        """The checkpoint to resume from. Rank 0's disk decides for all.

        Args:
            wanted: ``auto``, ``never`` or a path.

        Raises:
            UserError: as `resume.decide` and `lock` do.
        """

        if wanted != "never":
            folder = self.directory if wanted == "auto" else Path(wanted).parent
            self.shard_files = ShardFiles.find(folder)

        def decide() -> str:
            self.lock = lock(self.directory)
            verified = self.shard_files.names
            decision = resume.decide(
                wanted, self.directory, self.run, self.declared, self.state_key, verified
            )
            if decision.message:
                print(decision.message, flush=True)
            return decision.to_json()

        self.resume_point = resume.ResumeDecision.from_json(
            session.from_rank_0("resume", decide)
        ).resume_point
        if session.current_cluster().local_rank == 0:
            files.remove_temporary_shards(self.directory)
        return self.resume_point.path if self.resume_point else None

    def load_best_weights(self, model: pl.LightningModule) -> None:
        """Load the best weights; the last ones stay where no validation was good. Collective.

        Rank 0 has them, and a sum with the others' zeros hands them on, which every backend can do.
        Of divided weights every rank has its part.
        """
        first = session.current_cluster().rank == 0
        best = self.writer.best_weights
        if first and best is not None:
            print(f"best weights: {self.best}", flush=True)
        elif first:
            problem = f"no validation gave a finite {self.best.monitor}"
            if not self.validated:
                problem = "training ended before its first validation (--val_check_steps)"
            print(f"warning: {problem}; the last weights are taken", file=sys.stderr)
        if isinstance(self.writer, ShardWriter):
            if best is not None:
                model.load_state_dict(weights_like(best, model.state_dict()))
            return
        if best is not None:
            model.load_state_dict(best)
        for tensor in filter(torch.is_tensor, model.state_dict().values()):
            tensor.copy_(collectives.all_sum(tensor if first else torch.zeros_like(tensor)))

    def finish(self) -> None:
        """The run is complete, artifacts included, on every rank: the next one starts anew.

        Raises:
            UserError: that could not be written down.
        """
        signals.complete()  # or a run that says it was stopped could be marked here
        if session.current_cluster().rank == 0:
            files.mark_finished(self.directory)
            self.lock.release()

    # Resuming

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        _refuse_unsupported(trainer, stage)
        signals.replace_lightning_signal_handlers(trainer)
        signals.defer(f"{self.rerun} to resume")
        if not isinstance(trainer.strategy.checkpoint_io, CheckpointPlugin):
            if isinstance(trainer.strategy, ShardedStrategy):
                self.writer = self._shard_writer(trainer.strategy.shard_size)
            lightnings = trainer.strategy.checkpoint_io
            trainer.strategy.checkpoint_io = CheckpointPlugin(
                self.writer, self.resume_point, self.shard_files, lightnings
            )
        if self.resume_point and stage == "fit":
            self.comparison = pl_module.register_load_state_dict_pre_hook(
                resume.refuse_another_architecture
            )

    def _shard_writer(self, shards: int) -> ShardWriter:
        """Its first number is the one after those in rank 0's folder. Collective."""
        number = session.from_rank_0(
            "checkpoint number", lambda: str(files.next_number(self.directory))
        )
        return ShardWriter(self.directory, session.current_cluster(), int(number), shards)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue from the chosen checkpoint, whose weights are loaded.

        One that the caller named for an evaluation is left alone.
        """
        if trainer.state.fn != "fit" or not self.resume_point:
            return
        self.comparison.remove()
        state = checkpoint["callbacks"][self.state_key]
        self.position = dataclasses.replace(
            Position.from_dict(state["position"]), complete=self.resume_point.complete
        )
        self.optimizers = state.get("optimizers", [])
        resume.refuse_shorter_training(self.position, trainer.max_epochs, trainer.max_steps)
        weights = checkpoint.pop("best_weights", None)
        if weights is not None and isinstance(self.writer, ShardWriter):
            weights = weights_like(weights, pl_module.state_dict())
        self._resume_best(trainer, Best.from_dict(state["best"]), weights)
        self._resume_data(trainer, state["data"])
        self._resume_loops(trainer, checkpoint["loops"]["fit_loop"])
        trainer.should_stop = self.resume_point.complete  # by EarlyStopping, say

    def _resume_best(
        self, trainer: pl.Trainer, best: Best, weights: Mapping[str, Any] | None
    ) -> None:
        """Keep the best weights so far, unless another metric now says which are best.

        Args:
            weights: on the ranks that keep them.
        """
        assert self.resume_point
        same = best.criterion == self.best.criterion
        file = files.best_file(self.resume_point.path)
        beside = self.resume_point.path.parent == self.directory  # else they are written here, too
        file = file if beside and not isinstance(self.writer, ShardWriter) else None
        self.writer.resume_from(self.position, weights if same else None, file)
        if same:
            self.best = best
        elif trainer.is_global_zero:
            print(
                f"resume: best was {best.criterion} and is now {self.best.criterion}; "
                "the best weights are chosen from here on",
                flush=True,
            )

    def _resume_data(self, trainer: pl.Trainer, fingerprint: str) -> None:
        """Refuse other data, in which the position says nothing."""
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        if not fingerprint and trainer.is_global_zero:
            print(
                "data: whether it has changed since is not known: Data sets no fingerprint",
                flush=True,
            )
        if fingerprint != getattr(datamodule, "fingerprint", ""):
            raise UserError(
                "The data has changed since the checkpoint was made, so its data position is not "
                "valid",
                "bring the old data back, or train from the start with --resume never",
            )

    def _resume_loops(self, trainer: pl.Trainer, fit_loop: dict[str, Any]) -> None:
        epoch, batch = self.position.next_start()
        batches, all_batches = self.position.rank_counts(trainer.accumulate_grad_batches)
        loop.set_progress(
            fit_loop,
            step=self.position.step,
            epoch=epoch,
            batches=batches,
            all_batches=all_batches,
            last=batch > 0 and self.position.epoch_trained,
            validate=self.position.validation_next,
            max_steps=trainer.max_steps,
        )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The optimizers are there, and their states are not restored yet."""
        optimizers = [type(optimizer).__name__ for optimizer in trainer.optimizers]
        if self.resume_point and self.optimizers:
            resume.refuse_another_optimizer(self.optimizers, optimizers)
        self.optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        return {
            "options": self.run.options,
            "global_batch": self.run.global_batch,
            "data": self.data,
            "optimizers": self.optimizers,
            "position": self.position.to_dict(),
            "best": self.best.to_dict(),
        }

    # Training

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Of several loaders Lightning gives no metrics of validation_step before training.
        several = len(trainer.num_sanity_val_batches) > 1
        if not several or self.best.monitor in trainer.callback_metrics:
            self._score(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        if total < 0:
            raise UserError(
                "The training data has no length, so its number of steps is not known",
                "pass --max_steps",
            )
        if (
            self.resume_point
            and trainer.is_global_zero
            and not resumes_exactly(trainer.train_dataloader)
        ):
            start = resume.data_start(*self.position.next_start(), self.position.batches_per_epoch)
            print(f"resume: {start}", flush=True)
        batches, then = _global_batches(trainer), self.position.batches_per_epoch
        if then not in (0, batches):
            raise UserError(
                f"The checkpoint was made with {then} global batches per epoch, now there are "
                f"{batches}",
                "bring back the data and the loader of then, or train from the start with "
                "--resume never",
            )
        self.position = self.position.started(batches, int(total), trainer.accumulate_grad_batches)
        self.data = getattr(trainer.datamodule, "fingerprint", "")  # type: ignore[attr-defined]
        self.saved_at = time.monotonic()
        self._agree(trainer)
        if self.stopping:
            self._stop(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end of the epoch before.

        Only now are its metrics logged and its schedulers updated.
        """
        if self.due:
            self._save(trainer, wait=self.stopping)
        if self.stopping:
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
        if not complete:  # gradients are being accumulated: no checkpoint holds those
            return
        self.position = self.position.after_batch(
            epoch=trainer.current_epoch,
            rank_batches=batch_idx + 1,
            all_rank_batches=loop.batches_trained(trainer),
            last=last,
            validation_next=loop.validates_next(trainer),
        )
        loop.check_count(trainer, self.position.step)
        if self.position.at_epoch_end:  # which is saved after its hooks
            return
        if self.stopping:
            self._save(trainer, wait=True)
            self._stop(trainer)
        if self.due or (self.steps and self.position.step % self.steps == 0):
            self._save(trainer, skip_if_busy=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.position = self.position.after_epoch()
        self.due = True
        loop.end_restart(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._refuse_no_training(trainer)  # before a checkpoint says that training is complete
        self.position = self.position.finished()
        self._save(trainer, wait=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._refuse_no_training(trainer)  # on_train_end is not called without a batch

    def _refuse_no_training(self, trainer: pl.Trainer) -> None:
        """Lightning ends a training without a batch without an error."""
        if not self.position.step and trainer.max_steps:
            raise _no_batch("training", "train_dataloader")

    # Evaluation

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.equally_many = equally_many(trainer.val_dataloaders)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.equally_many = equally_many(trainer.test_dataloaders)

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.sanity_checking:
            return
        self._agree(trainer)
        if not self.stopping:
            return
        if trainer.state.fn == "fit":
            if _averages_weights(trainer):
                return  # its averages are in the model's place; the stop is taken after validation
            self._save(trainer, wait=True)
        self._stop(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Weight averaging has just put its averages in the model, and takes them out again before
        their score is known.
        """
        if trainer.is_global_zero and _averages_weights(trainer):
            self.averages = snapshot(pl_module.state_dict(), self.averages)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.validated = True
        self.position = self.position.after_validation()
        score = self._score(trainer)
        if not self.best.improved_by(score):
            return
        self.best = self.best.replaced_by(score, self.position)
        if trainer.is_global_zero or isinstance(self.writer, ShardWriter):
            self.writer.keep_best(self.averages or pl_module.state_dict())

    def _score(self, trainer: pl.Trainer) -> float:
        """The monitored metric of a validation, the same on every rank. Collective."""
        monitor = self.best.monitor
        if monitor not in trainer.callback_metrics:
            if not sum(trainer.num_val_batches):
                raise _no_batch("validation", "val_dataloader")
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            cure = f"log {monitor} in the model, or name another metric as MONITOR"
            if f"{monitor}/dataloader_idx_0" in trainer.callback_metrics:
                cure = (
                    f"Lightning adds the number of each of several loaders: set MONITOR to "
                    f"{monitor}/dataloader_idx_0, and log test metrics under such a name, or log "
                    f"{monitor} for one loader alone by self.log(..., add_dataloader_idx=False)"
                )
            raise UserError(
                f"The best weights are those of the {self.best.criterion}, but validation logged "
                f"{logged}",
                cure,
            )
        value = float(trainer.callback_metrics[monitor])
        return equal_on_ranks(monitor, value, trainer.sanity_checking)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "test" and not sum(trainer.num_test_batches):
            raise _no_batch("test", "test_dataloader")
        if stage != "fit":
            signals.exit_on_signal()  # what follows is rank 0's own

    # Saving and stopping

    def _agree(self, trainer: pl.Trainer) -> None:
        """Agree whether to stop or to save; leave where a checkpoint failed. Collective."""
        if not trainer.training and not self.equally_many:
            return
        late = time.monotonic() - self.saved_at > 60 * self.minutes
        votes = Votes(
            stop=signals.requested(),
            save=trainer.is_global_zero and late,
            leave=self.writer.failed(),
        )
        answer = self.agreement.ask(trainer, votes)
        self.stopping = self.stopping or answer.stop
        self.due = self.due or answer.save
        if answer.leave:
            self._fail()

    def _save(self, trainer: pl.Trainer, wait: bool = False, skip_if_busy: bool = False) -> None:
        """Save what stands at ``position``. Collective.

        Args:
            wait: return when it is on disk; else when it is copied.
            skip_if_busy: leave this one out while another is being written; else it follows that
                one.
        """
        if not skip_if_busy or not collectives.any_rank(self.writer.busy()):
            with watchdog.pause_watchdog():
                self._wait_until_written()
                trainer.save_checkpoint(self.directory, storage_options=self.position)
                if wait:
                    self._wait_until_written()
        self.due, self.saved_at = False, time.monotonic()

    def _wait_until_written(self) -> None:
        """Wait for the checkpoint before. Collective, so that a rank that was lost is noticed."""
        while collectives.any_rank(self.writer.busy()):
            time.sleep(0.01)
        if collectives.any_rank(self.writer.failed()):
            self._fail()

    def _fail(self) -> None:
        """A checkpoint could not be written: the rank that failed says why, and all leave."""
        self.writer.finish()  # raises it there
        raise torch.distributed.DistNetworkError(
            "another rank could not write a checkpoint"
        )  # session() asks it why

    def _stop(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            # A checkpoint of another folder is none of this run's own.
            written = self.position.step and files.numbered(self.directory)
            advice = f"{self.rerun} to resume" if written else RERUN
            print(
                f"stopped by {signals.name()} at {self.position}; {advice}",
                file=sys.stderr,
                flush=True,
            )
        raise signals.Stopped


def _averages_weights(trainer: pl.Trainer) -> bool:
    every: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return any(isinstance(callback, WeightAveraging) for callback in every)


def _refuse_unsupported(trainer: pl.Trainer, stage: str) -> None:
    """Raises UserError where a callback, an argument or the strategy cannot be resumed exactly."""
    every: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in every:
        for kinds, problem, cure in UNSUPPORTED:
            if isinstance(callback, kinds):
                raise UserError(f"{type(callback).__name__} {problem}", cure)
        if isinstance(callback, BaseFinetuning) and trainer.world_size > 1:
            raise UserError(
                f"{type(callback).__name__} has parameters require gradients after DDP has wrapped "
                "the model, and each rank would train them on its own data alone",
                "give them a parameter group whose learning rate is 0 until then",
            )
        if isinstance(callback, WeightAveraging) and isinstance(trainer.strategy, ShardedStrategy):
            raise UserError(
                f"{type(callback).__name__} averages whole weights, and each rank has parts",
                "leave it out, or use --strategy ddp",
            )
    if loop.validates_by_the_clock(trainer):
        raise UserError(
            "val_check_interval is a time, and a resumed run would validate at other steps",
            "use --val_check_steps",
        )
    known = (DDPStrategy, SingleDeviceStrategy, ShardedStrategy)
    if not isinstance(trainer.strategy, known):
        raise UserError(
            f"{type(trainer.strategy).__name__} may keep parts of the weights on each rank, and "
            "Checkpoints does not know which",
            "use what dist.get_initialization_info() returns",
        )
    if stage == "fit" and trainer.max_epochs == trainer.max_steps == -1:
        raise UserError(
            "The number of steps is not known: max_epochs and max_steps are both -1",
            "set one of them",
        )


def _global_batches(trainer: pl.Trainer) -> int:
    """Global batches of an epoch; 0 where the data has no length."""
    if math.isinf(trainer.num_training_batches):
        return 0
    return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)


def _no_batch(split: str, loader: str) -> UserError:
    return UserError(f"There is not one batch of {split} data", f"see what {loader} is made of")
