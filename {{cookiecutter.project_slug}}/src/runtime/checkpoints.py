"""What a run resumes from: weights, the best weights so far, optimizer, schedule, progress and curves.

All ranks save, stop and resume together, and a resumed run continues exactly: no random state is kept, since order and
dropout are functions of numbers (`batches.GlobalBatches`, `seeds.StepSeed`). Files: `checkpoint_files.py`.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout

from runtime import ranks, signals, watchdog
from runtime.checkpoint_files import NAME, AsyncCheckpointIO, finished, newest, whole
from runtime.command_line import Option
from runtime.loop_state import set_progress
from runtime.prepared import digest
from runtime.report import UserError, atomic_write, ensure_dir

LOCK_SECONDS = 15  # loader workers of a process that was killed live on for 5 s, and keep its lock
ASK_SECONDS = 0.3  # about how often the ranks agree whether to stop or to save


class Checkpoints(pl.Callback):
    """Saves, resumes and stops; all ranks call it at the same batches, rank 0 writes. Give it to Trainer last.

    Args:
        directory: on SageMaker the folder it syncs with S3 and restores on every host; rank 0's is enough.
        options: of this run, plain values; a checkpoint of other options is not gone on with. Their product of
            ``batch_size``, ``accumulate_grad_batches`` and the world size has to stay the same.
        minutes: between two checkpoints; each epoch's end has one anyway.
        steps: optimizer steps between two checkpoints; 0: by minutes alone.
        monitor: the validation metric whose best value marks the best weights.
        mode: of that metric, whether ``max`` or ``min`` is best.
        declared: the options by their names: which may differ between a run and its continuation, and the defaults
            that a checkpoint made before an option was added counts as having.
    """

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
        self.directory, self.minutes, self.steps = directory, minutes, steps
        self.monitor, self.mode, self.sign = monitor, mode, {"max": 1, "min": -1}[mode]
        self.declared = declared or {}
        self.options = {k: v for k, v in options.items() if k not in self._declared_as("free")}
        per_rank = options.get("batch_size", 1) * options.get("accumulate_grad_batches", 1)
        self.global_batch = per_rank * ranks.cluster().world_size
        self.again = "start the same command again" + (" with --resume auto" * (options.get("resume") != "auto"))
        self.best_score = -self.sign * math.inf
        self.data = ""
        self.position = {"step": 0, "epoch": 0, "batch": 0, "batches": 0, "total": 0}
        self.saved_at = time.monotonic()
        self.asks: dict[str, dict[str, float]] = {}
        self.stopping = self.due = False
        self.disk = AsyncCheckpointIO(directory)

    # Going on

    def resume(self, wanted: str) -> Path | None:
        """The checkpoint to go on from: ``auto``, ``never`` or a path. Rank 0's disk decides for all.

        Raises:
            UserError: the path holds no checkpoint that this run can go on from; or there are checkpoints, all damaged;
                or another run is writing to the folder.
        """

        def decide() -> str:
            try:
                self._lock()
                return json.dumps(self._decide(wanted))
            except UserError as error:
                return json.dumps({"error": str(error)})

        decision = json.loads(ranks.from_rank_0("resume", decide))
        if "error" in decision:
            raise UserError(decision["error"])
        if ranks.cluster().rank == 0 and decision["say"]:
            print(f"resume: {decision['say']}", flush=True)
        if not decision["path"]:
            return None
        self.disk.digest = decision["digest"]
        return Path(decision["path"])

    def _lock(self) -> None:
        """Keep the folder for this process as long as it lives: two runs would remove each other's checkpoints."""
        self.lock = FileLock(ensure_dir(self.directory).absolute() / ".lock", is_singleton=True)
        try:
            self.lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise UserError(
                f"Another run is writing to {self.directory}; wait for its end, or name another --output_dir."
            ) from None
        except NotImplementedError:  # a network's file system without locks
            pass
        except OSError as error:
            raise UserError(
                f"Nothing can be written to {self.directory} ({error.strerror}); name another --output_dir."
            ) from None

    def _decide(self, wanted: str) -> dict[str, str]:
        nothing = {"path": "", "say": ""}
        if wanted == "never":
            return nothing
        if wanted == "auto":
            path = newest(self.directory)
            if path is None:
                return nothing
        else:
            path = Path(wanted)
            if not path.is_file():
                raise UserError(f"--resume {wanted!r}: no such checkpoint; expected auto, never or a file.")
            if not whole(path):
                raise UserError(
                    f"--resume {wanted!r}: the file, or that of the best weights beside it, is damaged or missing; "
                    "name another one, or say auto."
                )
        state = self._read(path)
        defaults = {name: option.default for name, option in self.declared.items()}
        stored = defaults | state["options"]  # an option that was added since is at its default there
        differing = [k for k, v in self.options.items() if stored.get(k) != v]
        if state["global_batch"] != self.global_batch:
            differing.insert(0, "global batch")
        place = "step {step} of {total}".format(**state["position"])
        if wanted == "auto" and finished(path):
            return {"path": "", "say": f"not from {path}, that run is finished; training from the start"}
        if wanted == "auto" and differing:
            raise UserError(
                f"{self.directory} holds an unfinished run, {place}, whose {differing[0]} differs; to go on with it "
                "say what it was told, to give it up --resume never, to keep it name another --output_dir."
            )
        if kept := self._declared_as("optimizer").intersection(differing):
            raise UserError(
                f"--resume {wanted!r}: its {min(kept)} differs, and the optimizer keeps the checkpoint's; "
                "say the same, or train from the start with --resume never."
            )
        if moved := {"global batch", *self._declared_as("data")}.intersection(differing):
            raise UserError(
                f"--resume {wanted!r}: its {min(moved)} differs, so its place in the data means nothing here."
            )
        if path.parent.resolve() != self.directory.resolve() and (own := newest(self.directory)) and not finished(own):
            raise UserError(
                f"--resume {wanted!r}: {self.directory} holds an unfinished run of its own, which this one would "
                "replace; name another --output_dir, or go on with that one: --resume auto."
            )
        known = NAME.fullmatch(path.name)
        return {"path": str(path), "say": f"from {path}, {place}", "digest": known[3] if known else digest(path)}

    def _declared_as(self, resume: str) -> set[str]:
        return {name for name, option in self.declared.items() if option.resume == resume}

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return torch.load(path, weights_only=True, mmap=True, map_location="cpu")["callbacks"][self.state_key]
        except Exception as error:  # unpickling knows no bounds
            raise UserError(f"{path} is not a checkpoint of this program ({type(error).__name__}).") from error

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        signals.replace_lightning_signal_handlers(trainer)
        signals.defer(f"{self.again} to go on")
        trainer.strategy.checkpoint_io = self.disk

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Tell data and Lightning's loops where to go on, in global batches, which no number of ranks changes."""
        self.position = at = checkpoint["callbacks"][self.state_key]["position"]
        if hasattr(trainer.datamodule, "start"):  # type: ignore[attr-defined]
            trainer.datamodule.start = (at["epoch"], at["batch"])  # type: ignore[attr-defined]
        elif at["batch"]:
            print("warning: Data has no `start`, so this epoch's first samples are seen again", file=sys.stderr)
        warnings.filterwarnings("ignore", ".*your dataloader is not resumable.*")  # it starts in the right place
        if checkpoint["callbacks"][self.state_key]["data"] != getattr(trainer.datamodule, "fingerprint", ""):  # type: ignore[attr-defined]
            raise UserError(
                "The data has changed since the checkpoint was made, so its place there means nothing; "
                "bring the old data back, or train from the start with --resume never."
            )
        set_progress(checkpoint["loops"]["fit_loop"], **at, accumulate=trainer.accumulate_grad_batches)

    def state_dict(self) -> dict[str, Any]:
        mine = {"options": self.options, "global_batch": self.global_batch, "position": self.position}
        mine |= {"data": self.data}
        return {**mine, "monitor": (self.monitor, self.mode), "best_score": self.best_score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        monitor = (self.monitor, self.mode)
        if tuple(state_dict.get("monitor", monitor)) == monitor:  # else the values do not compare
            self.best_score = state_dict["best_score"]
        else:
            self.disk.best = None
        self.disk.written = state_dict["position"]

    # Saving and stopping

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        batches = int(trainer.num_training_batches) // trainer.accumulate_grad_batches
        if self.position["batches"] not in (0, batches):
            raise UserError(
                f"The checkpoint was made with {self.position['batches']} global batches per epoch, now there are "
                f"{batches}: the data changed; train from the start with --resume never."
            )
        self.position |= {"batches": batches, "total": int(trainer.estimated_stepping_batches)}
        self.saved_at = time.monotonic()
        self.data = getattr(trainer.datamodule, "fingerprint", "")  # type: ignore[attr-defined]
        self._ask(trainer, "train")
        if self.stopping:
            self._stop(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._ask(trainer, "train")
        done, rest = divmod(batch_idx + 1, trainer.accumulate_grad_batches)
        if rest:  # gradients are being accumulated: no checkpoint holds those
            return
        self._at(trainer, done)
        if self.stopping:
            self._save(trainer, wait=True)
            self._stop(trainer)
        if self.due or (self.steps and trainer.global_step % self.steps == 0):
            self._save(trainer)

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self._ask(trainer, "validate")
        if self.stopping:
            if trainer.state.fn == "fit":
                self._save(trainer, wait=True)
            self._stop(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        if self.monitor not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise UserError(
                f"The best weights are those of the {self.mode} {self.monitor}, but validation logged {logged}; "
                f"log {self.monitor} in the model, or name another metric as MONITOR."
            )
        score = float(trainer.callback_metrics[self.monitor])  # the same on every rank
        if self.sign * score > self.sign * self.best_score:
            self.best_score = score
            if trainer.is_global_zero:
                self.disk.keep_best(pl_module.state_dict())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.position["batch"] == self.position["batches"]:  # not where max_steps ended it
            self.position |= {"epoch": self.position["epoch"] + 1, "batch": 0}
        self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer, wait=True)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Test the best weights, not the last: rank 0 holds them, and a sum with the others' zeros hands them on."""
        if self.disk.best is not None:  # None: training ended before the first validation
            pl_module.load_state_dict(self.disk.best)
        with torch.no_grad():
            for tensor in pl_module.state_dict().values():
                tensor.copy_(ranks.all_sum(tensor if trainer.is_global_zero else torch.zeros_like(tensor)))

    def on_test_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self._ask(trainer, "test")
        if self.stopping:
            self._stop(trainer)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
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
                    "free some space, or the same command goes on with this run."
                ) from None
            self.lock.release()

    def _at(self, trainer: pl.Trainer, batch: int) -> None:
        self.position |= {"step": trainer.global_step, "epoch": trainer.current_epoch, "batch": batch}

    def _ask(self, trainer: pl.Trainer, phase: str) -> None:
        """Agree with the other ranks, at most every ASK_SECONDS, whether one was told to stop or a checkpoint is due.

        Collective: all ranks count the same batches, and derive from the same sums after how many to ask again.
        """
        ask = self.asks.setdefault(phase, {"left": 1, "every": 1, "since": time.monotonic()})
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

    def _save(self, trainer: pl.Trainer, wait: bool = False) -> None:
        """Save what stands at ``position``. Collective. With `wait` it is on disk when this returns."""
        self.disk.wait, self.disk.position = wait, dict(self.position)
        with watchdog.pause_watchdog():
            trainer.save_checkpoint(self.directory / "next")  # AsyncCheckpointIO.save_checkpoint gives the name
        self.due, self.saved_at = False, time.monotonic()
        if wait and ranks.any_rank(self.disk.failed()):
            self._fail()

    def _fail(self) -> None:
        """A checkpoint could not be written: rank 0 says why, and all leave."""
        if ranks.cluster().rank == 0:
            self.disk.finish()
        raise torch.distributed.DistNetworkError("rank 0 could not write a checkpoint")  # session() asks it why

    def _stop(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            place = "step {step} of {total}".format(**self.position)
            again = f"{self.again} to go on" if self.position["step"] else "start the same command again"
            print(f"stopped by {signals.name()} at {place}; {again}", file=sys.stderr, flush=True)
        raise signals.Stopped
