"""What a run resumes from: weights, the best weights so far, optimizer, schedule, progress and curves.

All ranks save, stop and resume together, and a resumed run continues exactly: no random state is kept, since order and
dropout are functions of numbers (`batches.GlobalBatches`, `seeds.StepSeed`). Files: `checkpoint_files.py`.
"""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BatchSizeFinder, Checkpoint, LearningRateFinder
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from runtime import loop_state, ranks, resume, signals, watchdog
from runtime.checkpoint_files import AsyncCheckpointIO, newest
from runtime.command_line import Option
from runtime.divided import equal_on_ranks, equally_many
from runtime.report import UserError, atomic_write

ASK_SECONDS = 0.3  # about how often the ranks agree whether to stop or to save
RERUN = "start the same command again"


class Checkpoints(Checkpoint):
    """Saves, resumes and stops; all ranks call it at the same batches, rank 0 writes.

    As a Checkpoint of Lightning's it comes after other callbacks, and the Trainer adds no ModelCheckpoint.

    Args:
        directory: on SageMaker the folder it syncs with S3 and restores on every host; rank 0's is enough.
        options: of this run, plain values. The product of ``batch_size``, ``accumulate_grad_batches`` and the world
            size has to stay the same in a resumed run.
        minutes, steps: between two checkpoints, as options.py explains them.
        monitor, mode: the validation metric whose ``max`` or ``min`` marks the best weights; UserError for other modes.
        declared: the options by their names: their defaults, and which of them may differ in a resumed run.
    """

    best_model_path = ""  # Lightning asks the first Checkpoint for it

    def __init__(
        self,
        directory: Path,
        options: dict[str, Any],
        minutes: float = 5.0,
        steps: int = 0,
        *,
        monitor: str,
        mode: Literal["max", "min"] = "max",
        declared: Mapping[str, Option] | None = None,
    ) -> None:
        if mode not in ("max", "min"):
            raise UserError(f"MODE is {mode!r}; set it to 'max' or 'min', whichever is best for {monitor}.")
        self.directory, self.minutes, self.steps = directory, minutes, steps
        self.monitor, self.mode, self.sign = monitor, mode, 1 if mode == "max" else -1
        self.declared = declared or {}
        free = {name for name, option in self.declared.items() if option.resume == "free"}
        self.options = {name: value for name, value in options.items() if name not in free}
        per_rank = options.get("batch_size", 1) * options.get("accumulate_grad_batches", 1)
        self.global_batch = per_rank * ranks.cluster().world_size
        self.rerun = RERUN + (" with --resume auto" * (options.get("resume") != "auto"))
        self.best_score, self.best_at = -self.sign * math.inf, ""
        self.data = ""
        # In global batches; in a rank's, `accumulate` of which make a global one, an epoch's last perhaps of fewer;
        # whether `batch` was the epoch's last, validation comes next, training is complete.
        self.position = dict.fromkeys(("step", "epoch", "batch", "batches", "total"), 0)
        self.position |= dict.fromkeys(("accumulate", "rank_batches", "all_rank_batches"), 0)
        self.position |= dict.fromkeys(("last", "validate", "done"), False)
        self.saved_at = time.monotonic()
        self.asks: dict[Any, dict[str, float]] = {}  # by stage: training, validation, test
        self.stopping = self.due = False
        self.disk = AsyncCheckpointIO(directory)
        self.resumed: dict[str, Any] = {}  # what `resume` decided, where there is something to resume

    # Resuming

    def resume(self, wanted: str) -> Path | None:
        """The checkpoint to resume from: ``auto``, ``never`` or a path. Rank 0's disk decides for all.

        Raises:
            UserError: as `resume.decide` and `resume.lock` do.
        """

        def decide() -> str:
            self.lock = resume.lock(self.directory)
            return json.dumps(resume.decide(wanted, self.directory, vars(self), self.declared, self.state_key))

        decision = json.loads(ranks.from_rank_0("resume", decide))
        if not decision:
            return None
        self.resumed, self.disk.digest = decision, decision["digest"]
        return Path(decision["path"])

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, LearningRateFinder | BatchSizeFinder):
                raise UserError(
                    f"{type(callback).__name__} would change an option that a resumed run does not know of; use "
                    "pytorch_lightning.tuner.Tuner with a Trainer of its own, and pass what it finds as an option."
                )
        if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
            raise UserError(
                f"{type(trainer.strategy).__name__} may keep parts of the weights on each rank, and Checkpoints needs "
                "them whole; use what dist.get_initialization_info() returns, or see FSDP in docs/recipes.md."
            )
        if stage == "fit" and trainer.max_epochs == trainer.max_steps == -1:
            raise UserError("The number of steps is not known: max_epochs and max_steps are both -1; set one of them.")
        signals.replace_lightning_signal_handlers(trainer)
        signals.defer(f"{self.rerun} to resume")
        if self.resumed and stage == "fit":
            self.others_io, trainer.strategy.checkpoint_io = trainer.strategy.checkpoint_io, self.disk
            self.comparison = pl_module.register_load_state_dict_pre_hook(resume.refuse_another_architecture)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Tell data and Lightning's loops where to resume, in global batches, which no number of ranks changes."""
        if trainer.state.fn != "fit" or not self.resumed:  # a file that the caller named
            return
        trainer.strategy.checkpoint_io = self.others_io
        self.comparison.remove()
        state = checkpoint["callbacks"][self.state_key]
        self.disk.written = at = state["position"]
        self.position = dict(at)
        trainer.should_stop = self.resumed["done"]  # by EarlyStopping, say
        if (was := tuple(state["monitor"])) == (self.mode, self.monitor):
            self.best_score, self.best_at = state["best_score"], state.get("best_at", "")
        elif trainer.is_global_zero:
            self.disk.best = None
            now = f"{self.mode} {self.monitor}; the best weights are chosen from here on"
            print(f"resume: best was {' '.join(was)} and is now {now}", flush=True)
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        if state["data"] != getattr(datamodule, "fingerprint", ""):
            raise UserError(
                "The data has changed since the checkpoint was made, so its data position is not valid; "
                "bring the old data back, or train from the start with --resume never."
            )
        epoch, batch = (at["epoch"] + 1, 0) if at["last"] and not at["validate"] else (at["epoch"], at["batch"])
        if hasattr(datamodule, "start"):
            datamodule.start = (epoch, batch)
        elif trainer.is_global_zero:
            print(f"resume: {resume.inexact(epoch, batch, at['batches'])}", flush=True)
        mine, all_mine = at["rank_batches"] if batch else 0, at["all_rank_batches"]
        if (accumulate := trainer.accumulate_grad_batches) != at["accumulate"]:
            mine, all_mine = batch * accumulate, at["step"] * accumulate
        loop_state.set_progress(
            checkpoint["loops"]["fit_loop"], step=at["step"], epoch=epoch, batches=mine, all_batches=all_mine,
            last=bool(batch and at["last"]), validate=bool(at["validate"]), max_steps=trainer.max_steps,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        run = {"options": self.options, "global_batch": self.global_batch, "data": self.data}
        best = {"monitor": (self.mode, self.monitor), "best_score": self.best_score, "best_at": self.best_at}
        return {**run, "position": dict(self.position), **best}

    # Saving and stopping

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._score(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        batches, total = trainer.num_training_batches, trainer.estimated_stepping_batches
        if total < 0:
            raise UserError("The training data has no length, so its number of steps is not known; pass --max_steps.")
        batches = 0 if math.isinf(batches) else math.ceil(batches / trainer.accumulate_grad_batches)
        if self.position["batches"] not in (0, batches):
            raise UserError(
                f"The checkpoint was made with {self.position['batches']} global batches per epoch, now there are "
                f"{batches}; bring back the data and the loader of then, or train from the start with --resume never."
            )
        self.position |= {"batches": batches, "total": int(total), "accumulate": trainer.accumulate_grad_batches}
        self.saved_at = time.monotonic()
        self.data = getattr(trainer.datamodule, "fingerprint", "")  # type: ignore[attr-defined]
        self._ask(trainer)
        if self.stopping:
            self._stop(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end of the epoch before: only now are its metrics logged and its schedulers updated."""
        if self.due:
            self._save(trainer, wait=self.stopping)
        if self.stopping:
            self._stop(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._ask(trainer)
        last, accumulate = trainer.is_last_batch, trainer.accumulate_grad_batches
        if (batch_idx + 1) % accumulate and not last:  # gradients are being accumulated: no checkpoint holds those
            return
        self.position |= {"step": self.position["step"] + 1, "epoch": trainer.current_epoch, "last": last}
        self.position |= {"batch": math.ceil((batch_idx + 1) / accumulate), "rank_batches": batch_idx + 1}
        self.position |= {"all_rank_batches": trainer.fit_loop.epoch_loop.total_batch_idx + 1}
        self.position |= {"validate": loop_state.validates_next(trainer)}
        loop_state.check_count(trainer, self.position["step"])
        ends = last or self.position["step"] == self.position["total"]
        if ends and not self.position["validate"]:  # the epoch's end follows at once, and is saved after its hooks
            return
        if self.stopping:
            self._save(trainer, wait=True)
            self._stop(trainer)
        if self.due or (self.steps and self.position["step"] % self.steps == 0):
            self._save(trainer, omit=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.even = equally_many(trainer.val_dataloaders)
        if trainer.state.fn == "validate":
            self._load_best(trainer, pl_module)

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if trainer.sanity_checking:
            return
        self._ask(trainer)
        if self.stopping:
            if trainer.state.fn == "fit":
                self._save(trainer, wait=True)
            self._stop(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.position["validate"] = False
        score = self._score(trainer)
        if self.sign * score > self.sign * self.best_score:
            at = f", after step {self.position['step']} in epoch {self.position['epoch'] + 1}"
            self.best_score, self.best_at = score, at
            if trainer.is_global_zero:
                self.disk.keep_best(pl_module.state_dict())

    def _score(self, trainer: pl.Trainer) -> float:
        """The monitored metric of a validation, the same on every rank."""
        if self.monitor not in trainer.callback_metrics:
            if not sum(trainer.num_val_batches):
                raise UserError("There is not one batch of validation data; see what val_dataloader is made of.")
            raise UserError(
                f"The best weights are those of the {self.mode} {self.monitor}, but validation logged "
                f"{', '.join(sorted(trainer.callback_metrics)) or 'nothing'}; log {self.monitor} in the model, or name "
                "another metric as MONITOR."
            )
        return equal_on_ranks(self.monitor, float(trainer.callback_metrics[self.monitor]), trainer.sanity_checking)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.position["last"]:  # not where max_steps ended it
            self.position |= {"epoch": self.position["epoch"] + 1, "batch": 0, "rank_batches": 0, "last": False}
        self.due = True
        loop_state.end_restart(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_fit_end(trainer, pl_module)  # before a checkpoint says that training is done
        self.position["done"] = True
        self._save(trainer, wait=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.position["step"] and trainer.max_steps:  # Lightning ends such a training without an error
            raise UserError("There is not one batch of training data; see what train_dataloader is made of.")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.even = equally_many(trainer.test_dataloaders)
        self._load_best(trainer, pl_module)

    def _load_best(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Load the best weights: rank 0 holds them, and a sum with the others' zeros hands them on."""
        if trainer.ckpt_path:  # weights that the caller named
            return
        if self.disk.best is not None:
            pl_module.load_state_dict(self.disk.best)
            print(f"best weights: {self.mode} {self.monitor}: {self.best_score:.6g}{self.best_at}", flush=True)
        elif trainer.is_global_zero:
            print(f"warning: no validation gave a finite {self.monitor}; the last weights are taken", file=sys.stderr)
        for tensor in filter(torch.is_tensor, pl_module.state_dict().values()):
            tensor.copy_(ranks.all_sum(tensor if trainer.is_global_zero else torch.zeros_like(tensor)))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "test" and not sum(trainer.num_test_batches):  # nor did it load the best weights
            raise UserError("There is not one batch of test data; see what test_dataloader is made of.")
        if stage != "fit":
            signals.exit_on_signal()  # what follows is rank 0's own

    def finish(self) -> None:
        """The run is complete, artifacts included, on every rank: the next one starts anew."""
        signals.complete()  # or a run that says it was stopped could be marked here
        if ranks.cluster().rank == 0 and (path := newest(self.directory)):
            try:
                with atomic_write(self.directory / "finished") as mark:
                    mark.write_text(path.name)
            except OSError as error:
                raise UserError(
                    f"The model is saved, but not that the run is finished, in {self.directory} ({error.strerror}); "
                    "free some space, and start the command again with --resume auto: it trains nothing anew."
                ) from None
            self.lock.release()

    def _ask(self, trainer: pl.Trainer) -> None:
        """Agree with the other ranks, at most every ASK_SECONDS, whether one was told to stop or a checkpoint is due.

        Collective: all ranks count the same batches, and derive from the same sums after how many to ask again.
        """
        if not trainer.training and not self.even:
            return
        ask = self.asks.setdefault(trainer.state.stage, {"left": 1, "every": 1, "since": time.monotonic()})
        ask["left"] -= 1
        if ask["left"] > 0:
            return
        now = time.monotonic()
        due = trainer.is_global_zero and now - self.saved_at > 60 * self.minutes
        mine = [float(x) for x in (signals.requested(), due, self.disk.failed(), now - ask["since"])]
        if trainer.world_size > 1:
            mine = ranks.all_sum(torch.tensor(mine, device=trainer.strategy.root_device)).tolist()
            fitting = ASK_SECONDS * ask["every"] * trainer.world_size / max(mine[3], 1e-6)
            ask["every"] = max(1, min(int(fitting), 2 * ask["every"]))
        ask |= {"left": ask["every"], "since": time.monotonic()}
        self.stopping, self.due = self.stopping or mine[0] > 0, self.due or mine[1] > 0
        if mine[2]:
            self._fail()

    def _save(self, trainer: pl.Trainer, wait: bool = False, omit: bool = False) -> None:
        """Save what stands at ``position``. Collective.

        Args:
            wait: it is on disk when this returns.
            omit: while another one is being written it is left out; else it follows that one.
        """
        self.disk.wait, self.disk.omit, self.disk.position = wait, omit, dict(self.position)
        others_io, trainer.strategy.checkpoint_io = trainer.strategy.checkpoint_io, self.disk
        with watchdog.pause_watchdog():
            trainer.save_checkpoint(self.directory / "next")  # AsyncCheckpointIO.save_checkpoint gives the name
        trainer.strategy.checkpoint_io = others_io  # ModelCheckpoint's files are as it says
        self.due, self.saved_at = False, time.monotonic()
        if wait and ranks.any_rank(self.disk.failed()):
            self._fail()

    def _fail(self) -> None:
        """A checkpoint could not be written: rank 0 says why, and all leave."""
        self.disk.finish()  # raises it on rank 0; other ranks write nothing
        raise torch.distributed.DistNetworkError("rank 0 could not write a checkpoint")  # session() asks it why

    def _stop(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            at = "step {step} of {total}".format(**self.position)
            advice = f"{self.rerun} to resume" if self.position["step"] else RERUN
            print(f"stopped by {signals.name()} at {at}; {advice}", file=sys.stderr, flush=True)
        raise signals.Stopped
