"""When a run saves, stops and resumes: after the same batches on every rank, when all hooks of one
step, validation or epoch are done and those of the next have not begun.

A resumed run continues exactly: no random state is kept, since order, augmentation and dropout are
functions of numbers (data/batches.py, data/exact.py, training/seeds.py).
"""

import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities.combined_loader import CombinedLoader

from smlightning import errors
from smlightning.checkpoints import files, resume
from smlightning.checkpoints.agreement import Agreement
from smlightning.checkpoints.attributes import Attributes
from smlightning.checkpoints.best import Best
from smlightning.checkpoints.lock import lock
from smlightning.checkpoints.plugin import CheckpointPlugin
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.unsupported import check_trainer, start_averages
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.cluster import collectives, ending, exchange, session, signals
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.cluster.shards import weights_like
from smlightning.data import fingerprint
from smlightning.data.exact import resumes_exactly
from smlightning.errors import UserError
from smlightning.options import Option
from smlightning.tensors import checksums_of_parts
from smlightning.training import hangs, loop
from smlightning.training.loaders import Loaders, all_loaders
from smlightning.training.rank_checks import equal_on_ranks, equally_many

RERUN = "start the same command again"
LOADERS = {
    "training": "train_dataloader",
    "validation": "val_dataloader",
    "test": "test_dataloader",
}


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
        self.resume_point: resume.ResumePoint | None = None
        self.first_number: int | None = None  # of this run's checkpoints
        self.writer = CheckpointWriter(directory)
        self.agreement = Agreement(minutes)
        self.equally_many = True  # batches of this evaluation on every rank
        self.position = Position()
        self.data = ""  # fingerprint of the data
        self.optimizers: list[str] = []  # names of their classes
        self.best = Best(monitor, mode)
        self.validated = False  # whether this process has validated
        self.tested: list[int] = []  # checksums of the weights to be tested
        self.attributes = Attributes()
        self.resumes_within_epoch = False  # and has not trained yet
        self.between_steps = True  # no gradients are accumulated, and no step is half done

    # For train.py

    def resume(self, wanted: str) -> Path | None:
        """The checkpoint to resume from. Rank 0's disk decides, and every host needs its files.

        Args:
            wanted: ``auto``, ``never`` or a path.

        Raises:
            UserError: as `resume.decide` and `lock` do; or a host lacks a file.
        """
        cluster = session.current_cluster()

        def decide() -> list[Any]:
            self.lock = lock(self.directory)
            point = resume.decide(
                wanted, self.directory, self.identity, self.declared, self.state_key
            )
            number = files.next_number(self.directory)
            return [number, *([str(point.path), point.complete, point.with_best] if point else [])]

        self.first_number, *found = exchange.from_rank_0("resume", decide)
        path, complete, with_best = found or (None, False, True)
        problem = ""
        if cluster.local_rank == 0:
            files.remove_temporary(self.directory)
        if path and cluster.local_rank == 0 and cluster.rank != 0:
            try:
                files.verified(Path(path), with_best)
            except UserError as error:
                problem = error.problem
        problems = exchange.to_rank_0("checkpoint files", problem)
        missing = exchange.from_rank_0(
            "missing files",
            lambda: [[cluster.name(rank), text] for rank, text in enumerate(problems) if text][:1],
        )
        for name, text in missing:
            raise UserError(
                f"rank 0 resumes from {path}, but on {name} {text}",
                "share the folder of checkpoints between the hosts, or copy rank 0's to each",
            )
        if not path:
            return None
        self.resume_point = resume.ResumePoint(Path(path), complete, with_best)
        return self.resume_point.path

    def load_best_weights(self, model: pl.LightningModule) -> None:
        """Load the best weights; keep the last ones if no validation was good. Collective.

        With DDP rank 0 has them, and a sum with the others' zeros distributes them, which every
        backend can do. With FSDP every rank has its shard.
        """
        is_first = session.current_cluster().rank == 0
        best = self.writer.best_weights
        if is_first and best is not None:
            print(f"best weights: {self.best}", flush=True)
        elif is_first:
            problem = f"no validation gave a finite {self.best.monitor}"
            if self.resume_point and not self.resume_point.with_best:
                problem = "the file of the best weights is damaged"
            elif not self.validated and not self.resume_point:
                problem = "training ended before the first validation"
            print(f"warning: {problem}; the last weights are tested and saved", file=sys.stderr)
        if best is not None:
            weights = weights_like(best, model.state_dict())
            model.load_state_dict(weights, strict=model.strict_loading)
        if not self.writer.is_sharded:
            for tensor in filter(torch.is_tensor, model.state_dict().values()):
                tensor.copy_(collectives.of_rank_0(tensor))
        self.tested = checksums_of_parts(model.parameters())

    def finish(self) -> None:
        """The run is complete, artifacts included, on every rank: the next one starts anew.

        Raises:
            UserError: the folder could not be marked.
        """
        signals.complete()  # or a run that a signal stops could be marked here
        if session.current_cluster().rank == 0:
            files.mark(self.directory, files.FINISHED, f"free some space and {errors.RESUME}")
            self.lock.release()

    # Resuming

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_trainer(trainer, stage)
        self.best.check_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
        signals.replace_lightning_signal_handlers(trainer)
        signals.defer(f"{self.rerun} to resume")
        if stage == "fit":
            self.data = self._fingerprint(trainer)
        strategy = trainer.strategy
        if not isinstance(strategy.checkpoint_io, CheckpointPlugin):
            shard_size = strategy.shard_size if isinstance(strategy, ShardedStrategy) else 1
            self.writer = CheckpointWriter(self.directory, self.first_number, shard_size)
            with_best = self.resume_point is None or self.resume_point.with_best
            strategy.checkpoint_io = CheckpointPlugin(
                self.writer, strategy.checkpoint_io, with_best
            )

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue from the chosen checkpoint, whose weights are loaded.

        A checkpoint that the caller passes to an evaluation changes nothing.
        """
        if trainer.state.fn != "fit" or not self.resume_point:
            return
        complete = self.resume_point.complete
        self.position = replace(Position(**checkpoint["position"]), complete=complete)
        state = checkpoint["callbacks"][self.state_key]
        self.optimizers = state["optimizers"]
        self.attributes.resumed = checkpoint.pop("attributes")
        same_ranks = self.position.world_size == trainer.world_size
        self.loaders.resume(checkpoint.pop("loaders"), same_ranks)
        resume.check_length(self.position, trainer.max_steps)
        self._check_data(state["data"])
        best = Best(**state["best"])
        weights = checkpoint.pop("best_weights")
        if best.criterion != self.best.criterion:
            weights = None
            if trainer.is_global_zero:
                print(
                    f"resume: MODE and MONITOR were {best.criterion} and are now "
                    f"{self.best.criterion}; earlier validations do not count",
                    flush=True,
                )
        elif self.resume_point.with_best:
            self.best = best
        if weights is not None and self.writer.is_sharded:
            weights = weights_like(weights, pl_module.state_dict())
        self.writer.resume_from(self.position, weights)
        epoch, batch = self.position.next_start()
        self.resumes_within_epoch = batch > 0
        batches, all_batches = self.position.rank_counts(trainer.accumulate_grad_batches)
        loop.set_progress(
            checkpoint["loops"]["fit_loop"],
            step=self.position.step,
            epoch=epoch,
            batches=batches,
            all_batches=all_batches,
            last=batch > 0 and self.position.epoch_trained,
            validate=self.position.validation_next,
            complete=complete,
            max_steps=trainer.max_steps,
        )
        trainer.should_stop = complete  # by EarlyStopping, say

    def _fingerprint(self, trainer: pl.Trainer) -> str:
        """The data module's own, or one of the files that rank 0 has. Collective."""
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        given = getattr(datamodule, "fingerprint", "")
        if callable(given) or isinstance(given, set | frozenset):
            raise UserError(
                f"{type(datamodule).__name__}.fingerprint is a {type(given).__name__}, whose text "
                "is another one in each run",
                "set self.fingerprint to a text in setup",
            )
        own = str(given)
        dataset = str(self.identity.options.get("dataset", ""))
        return own or exchange.from_rank_0(
            "files of the data", lambda: fingerprint.of_files(dataset, os.environ)
        )

    def _check_data(self, then: str) -> None:
        """Raise a UserError for other data, in which the position means nothing."""
        if then != self.data:
            raise UserError(
                "The data has changed since the checkpoint was written, so its position in the "
                "data is not valid",
                "restore the old data, or train from the start with --resume never",
            )

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
            "best": asdict(self.best),
        }

    # Training

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # With several loaders Lightning has no metrics of validation_step before training.
        several = len(trainer.num_sanity_val_batches) > 1
        if not several or self.best.monitor in trainer.callback_metrics:
            self._score(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.loaders.begin(trainer)
        total = trainer.estimated_stepping_batches
        if total < 0:
            raise UserError(
                "The training data has no length, so its number of steps is not known",
                "pass --max_steps",
            )
        then = self.position.batches_per_epoch
        is_inexact = self.resume_point and not all(
            map(resumes_exactly, all_loaders(trainer.train_dataloader))
        )
        if is_inexact and trainer.is_global_zero:
            print(f"resume: {resume.data_start(*self.position.next_start())}", flush=True)
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
        if trainer.is_last_batch:  # max_steps may end training within the epoch
            self.loaders.end_epoch(trainer)
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
            raise _no_batch("training", trainer.train_dataloader)

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
            with hangs.slow():
                self._wait_until_written()
                self.writer.write()
                self._wait_until_written()
        self._stop(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.position = replace(self.position, validation_next=False)
        self.validated = True
        before = self.best
        self.best = before.after(self._score(trainer), self.position)
        if self.best is not before:
            self.writer.choose_validated()

    def on_test_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        *_: Any,
    ) -> None:
        """Warn once if a callback has exchanged the best weights, which are saved."""
        tested, self.tested = self.tested, []
        is_first = tested and trainer.is_global_zero
        if is_first and tested != checksums_of_parts(pl_module.parameters()):
            print(
                "warning: the test measures other weights than the best ones, which are saved: a "
                "callback exchanges them; let it do so in validation only",
                file=sys.stderr,
            )

    def _score(self, trainer: pl.Trainer) -> float:
        """The monitored metric of a validation, the same on every rank. Collective."""
        monitor = self.best.monitor
        if monitor not in trainer.callback_metrics:
            if not sum(trainer.num_val_batches):
                raise _no_batch("validation", trainer.val_dataloaders)
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise UserError(
                f"validation logged {logged}; expected {monitor}, since the {self.best.criterion} "
                "selects the best weights",
                f"log {monitor} in the model on every rank, or set MONITOR to one of these metrics",
            )
        self.best.check_metric(loop.logged_metric(trainer, monitor))
        value = float(trainer.callback_metrics[monitor])
        return equal_on_ranks(monitor, value, trainer.sanity_checking)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "test" and not sum(trainer.num_test_batches):
            raise _no_batch("test", trainer.test_dataloaders)
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


def _global_batches(trainer: pl.Trainer) -> int:
    """Global batches of an epoch; 0 if the data has no length."""
    if math.isinf(trainer.num_training_batches):
        return 0
    return math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)


def _no_batch(split: str, loaders: Any) -> UserError:
    hint = f"check what {LOADERS[split]} returns"
    for loader in CombinedLoader(loaders, "sequential").flattened:
        batches = getattr(loader, "batch_sampler", None)
        if getattr(batches, "drop_last", False):
            rows, size = len(loader.dataset), getattr(batches, "batch_size", None)
            hint = f"lower batch_size: it is {size}, drop_last is set, and there are {rows} rows"
    return UserError(f"There is not one batch of {split} data", hint)
