"""What a run needs to go on: written atomically and beside the training, verified, found again, resumed exactly.

A checkpoint is one file, ``000007-step000390-<checksum>.ckpt``: its number orders it, and its name tells whether its
content is whole. It holds weights, the best weights so far, optimizer, schedule, progress and curves. No random state:
order and dropout are functions of numbers (`data.GlobalBatches`, `callbacks.Randomness`).
"""

import copy
import hashlib
import io
import json
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout
from lightning_fabric.plugins import CheckpointIO

import dist
import stop
import watch
from report import UserError, folder, replacing

NAME = re.compile(r"(\d{6,})-step(\d+)-([0-9a-f]{16})\.ckpt")
KEEP = 3  # S3's copy follows additions and deletions in any order: the newest few must be there
LOCK_SECONDS = 15  # loader workers of a process that was killed live on for 5 s, and keep its lock
ASK_SECONDS = 0.3  # about how often the ranks agree whether to stop or to save

# Options that may differ between a run and its continuation; batch_size and accumulate as long as their product
# with the world size, the global batch, is the same.
FREE = {"resume", "output_dir", "data_dir", "num_workers", "log_every", "compile", "batch_size", "accumulate"}
FREE |= {"checkpoint_minutes", "checkpoint_steps", "hang_seconds"}
KEPT = {"lr", "weight_decay", "lr_scaling"}  # what the optimizer's state brings back
PLACE = {"dataset", "model_name", "max_length", "text_column", "label_column", "seed", "global batch"}  # what step 7 is


class Checkpoints(pl.Callback):
    """Saves, resumes and stops; all ranks call it at the same batches, rank 0 writes. Give it to Trainer last.

    Args:
        directory: on SageMaker the folder it syncs with S3 and restores on every host; rank 0's is enough.
        options: of this run, plain values; a checkpoint of other options is not gone on with.
        minutes: between two checkpoints; each epoch's end has one anyway.
        steps: optimizer steps between two checkpoints; 0: by minutes alone.
    """

    def __init__(self, directory: Path, options: dict[str, Any], minutes: float = 5.0, steps: int = 0) -> None:
        self.directory, self.minutes, self.steps = directory, minutes, steps
        self.options = {k: v for k, v in options.items() if k not in FREE}
        self.global_batch = options.get("batch_size", 1) * options.get("accumulate", 1) * dist.cluster().world_size
        self.again = "start the same command again" + (" with --resume auto" * (options.get("resume") != "auto"))
        self.best_score, self.best = -1.0, None
        self.data = ""
        self.position = {"step": 0, "epoch": 0, "batch": 0, "batches": 0, "total": 0}
        self.saved_at = time.monotonic()
        self.asks: dict[str, dict[str, float]] = {}
        self.stopping = self.due = False
        self.disk = Disk(directory)

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

        decision = json.loads(dist.from_rank_0("resume", decide))
        if "error" in decision:
            raise UserError(decision["error"])
        if dist.get_global_rank() == 0 and decision["say"]:
            print(f"resume: {decision['say']}", flush=True)
        if not decision["path"]:
            return None
        self.disk.digest = decision["digest"]
        return Path(decision["path"])

    def _lock(self) -> None:
        """Keep the folder for this process as long as it lives: two runs would remove each other's checkpoints."""
        self.lock = FileLock(folder(self.directory).absolute() / ".lock", is_singleton=True)
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
                raise UserError(f"--resume {wanted!r}: the file is damaged; name another one, or say auto.")
        state = self._read(path)
        differing = [k for k, v in self.options.items() if state["options"].get(k) != v]
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
        if kept := KEPT.intersection(differing):
            raise UserError(
                f"--resume {wanted!r}: its {min(kept)} differs, and the optimizer keeps the checkpoint's; "
                "say the same, or train from the start with --resume never."
            )
        if moved := PLACE.intersection(differing):
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

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return torch.load(path, weights_only=True, mmap=True, map_location="cpu")["callbacks"][self.state_key]
        except Exception as error:  # unpickling knows no bounds
            raise UserError(f"{path} is not a checkpoint of this program ({type(error).__name__}).") from error

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        stop.take_over(trainer)
        stop.defer(f"{self.again} to go on")
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
        return {**mine, "best_score": self.best_score, "best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score = state_dict["best_score"]
        self.best = state_dict["best"] if dist.get_global_rank() == 0 else None
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
        score = float(trainer.callback_metrics.get("val/accuracy", 0.0))  # the same on every rank
        if trainer.state.fn == "fit" and score > self.best_score:
            self.best_score = score
            self.best = snapshot(pl_module.state_dict()) if trainer.is_global_zero else None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.position["batch"] == self.position["batches"]:  # not where max_steps ended it
            self.position |= {"epoch": self.position["epoch"] + 1, "batch": 0}
        self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer, wait=True)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Test the best weights, not the last: rank 0 holds them, and a sum with the others' zeros hands them on."""
        if self.best is not None:  # None: training ended before the first validation
            pl_module.load_state_dict(self.best)
        with torch.no_grad():
            for tensor in pl_module.state_dict().values():
                tensor.copy_(dist.all_sum(tensor if trainer.is_global_zero else torch.zeros_like(tensor)))

    def on_test_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self._ask(trainer, "test")
        if self.stopping:
            self._stop(trainer)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stop.now()  # what follows is rank 0's own

    def finish(self) -> None:
        """The run is complete, artifacts included, on every rank: the next one starts anew."""
        stop.complete()  # or a run that says it was stopped could be marked here
        if dist.get_global_rank() == 0 and (path := newest(self.directory)):
            try:
                with replacing(self.directory / "finished") as mark:
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
        mine = [float(x) for x in (stop.requested(), due, self.disk.failed(), now - ask["since"])]
        if trainer.world_size > 1:
            mine = dist.all_sum(torch.tensor(mine, device=trainer.strategy.root_device)).tolist()
            fitting = ASK_SECONDS * ask["every"] * trainer.world_size / max(mine[3], 1e-6)
            ask["every"] = max(1, min(int(fitting), 2 * ask["every"]))
        ask |= {"left": ask["every"], "since": time.monotonic()}
        self.stopping, self.due = self.stopping or mine[0] > 0, self.due or mine[1] > 0
        if mine[2]:
            self._fail()

    def _save(self, trainer: pl.Trainer, wait: bool = False) -> None:
        """Save what stands at ``position``. Collective. With `wait` it is on disk when this returns."""
        self.disk.wait, self.disk.position = wait, dict(self.position)
        with watch.rest():
            trainer.save_checkpoint(self.directory / "next")  # Disk.save_checkpoint gives the name
        self.due, self.saved_at = False, time.monotonic()
        if wait and dist.agree(self.disk.failed()):
            self._fail()

    def _fail(self) -> None:
        """A checkpoint could not be written: rank 0 says why, and all leave."""
        if dist.get_global_rank() == 0:
            self.disk.finish()
        raise torch.distributed.DistNetworkError("rank 0 could not write a checkpoint")  # session() asks it why

    def _stop(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            place = "step {step} of {total}".format(**self.position)
            again = f"{self.again} to go on" if self.position["step"] else "start the same command again"
            print(f"stopped by {stop.name()} at {place}; {again}", file=sys.stderr, flush=True)
        raise stop.Stopped


class Disk(CheckpointIO):
    """How Lightning's ``trainer.save_checkpoint`` and ``fit(ckpt_path=...)`` write and read here.

    Writing takes a copy of the state, and a thread does the rest; one that comes while another is being written is
    left out unless it is waited for. Reading checks, and ranks whose host lacks the file get rank 0's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.wait = False
        self.digest = ""
        self.position: dict[str, int] = {}
        self.written: dict[str, int] = {}  # position of the newest
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Called on rank 0."""
        busy = self._pending is not None and not self._pending.done()
        if self.failed() or (busy and not self.wait):
            return
        if self.position != self.written:
            self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
            self._pending = self._thread.submit(write, self.directory, self.position["step"], snapshot(checkpoint))
            self.written = self.position
        if self.wait and self._pending:
            self._pending.exception()  # waits; `failed` tells

    def failed(self) -> bool:
        """Whether the latest checkpoint could not be written."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def finish(self) -> None:
        """Wait for the latest checkpoint; raises what hindered it."""
        if self._pending:
            self._pending.result()

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Called on every rank; loading executes nothing."""
        path = Path(path)
        here = dist.get_global_rank() == 0 or (path.is_file() and digest(path).startswith(self.digest))
        if not dist.agree(not here):
            return torch.load(path, map_location="cpu", weights_only=True)
        content = [path.read_bytes() if dist.get_global_rank() == 0 else None]
        torch.distributed.broadcast_object_list(content, 0, device=torch.device(dist.cluster().device))
        return torch.load(io.BytesIO(content[0]), map_location="cpu", weights_only=True)  # type: ignore[arg-type]

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def write(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` as the newest checkpoint, and remove all but the newest KEEP. A reader sees it whole or not at all.

    Raises:
        UserError: it could not be written; those before are as they were.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(".*.ckpt"):  # by a process that was killed
        left.unlink(missing_ok=True)
    known = numbered(directory)
    number = known[0][0] + 1 if known else 1
    temporary = directory / f".{number:06d}.ckpt"
    try:
        torch.save(state, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        path = directory / f"{number:06d}-step{step:06d}-{digest(temporary)[:16]}.ckpt"
        temporary.replace(path)
        _sync(directory)
    except (OSError, RuntimeError) as error:  # torch's writer makes a RuntimeError of a full disk
        temporary.unlink(missing_ok=True)
        free = shutil.disk_usage(directory).free / 2**20
        last = f"the last good one is {known[0][1]}" if known else "there is none yet"
        reason = "the disk is full" if free < 1 else str(error).splitlines()[0][:120]
        raise UserError(
            f"A checkpoint could not be written to {directory}, where {free:.1f} MiB are free ({reason}); {last}; "
            "free some space and start the same command again."
        ) from error
    for _, old in known[KEEP - 1 :]:
        old.unlink(missing_ok=True)
    return path


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in `directory` by their names, newest first."""
    found = [(int(m[1]), p) for p in directory.glob("*.ckpt") if (m := NAME.fullmatch(p.name))]
    return sorted(found, reverse=True)


def newest(directory: Path) -> Path | None:
    """The newest checkpoint that is whole; a warning names each that is not.

    Raises:
        UserError: there are checkpoints, and all are damaged. To start anew is for a person to say.
    """
    known = numbered(directory)
    for _, path in known:
        if whole(path):
            return path
        print(f"warning: {path} is damaged ({path.stat().st_size} bytes), trying the one before", file=sys.stderr)
    if known:
        raise UserError(f"All {len(known)} checkpoints in {directory} are damaged; to start anew say --resume never.")
    return None


def whole(path: Path) -> bool:
    """Whether the content is what the name's checksum says; a name without one says nothing."""
    match = NAME.fullmatch(path.name)
    return match is None or digest(path).startswith(match[3])


def finished(path: Path) -> bool:
    """Whether the run whose last checkpoint this is was completed."""
    mark = path.parent / "finished"
    return mark.is_file() and mark.read_text() == path.name


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def snapshot(state: Any) -> Any:
    """A copy in main memory that training does not change."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        made = copy.copy(state)  # keeps the class of a state_dict and what it knows of versions
        for key, value in state.items():
            made[key] = snapshot(value)  # type: ignore[index]
        return made
    if isinstance(state, (list, tuple)):
        return type(state)(snapshot(value) for value in state)
    return state


def set_progress(
    fit_loop: dict[str, Any], step: int, epoch: int, batch: int, batches: int, total: int, accumulate: int
) -> None:
    """Write a place into the state of Lightning's fit loop (2.6.6) as if a run had just got there.

    What Lightning saves depends on the hook that saves and on accumulation, and after some it repeats or leaves out
    an epoch's end. These are its own words for: `epoch` epochs are complete and `batch` global batches of the next;
    where that is all of them, validation has to begin.
    """

    def set_counters(name: str, started: int, complete: int, total_started: int, total_complete: int) -> None:
        for when, first, last in (("current", started, complete), ("total", total_started, total_complete)):
            counters = fit_loop[name][when]
            counters |= {key: first if key in ("ready", "started") else last for key in counters}

    begun = epoch + (batch > 0)
    set_counters("epoch_progress", begun, epoch, begun, epoch)
    done, all_done = batch * accumulate, (epoch * batches + batch) * accumulate
    set_counters("epoch_loop.batch_progress", done, done, all_done, all_done)
    validating = int(0 < batch == batches)
    fit_loop["epoch_loop.batch_progress"]["is_last_batch"] = bool(validating)
    set_counters("epoch_loop.val_loop.batch_progress", validating, 0, validating, 0)
    fit_loop["epoch_loop.val_loop.batch_progress"]["is_last_batch"] = False
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = step - validating  # counted after validation


def _sync(directory: Path) -> None:
    """Make a rename last; on Windows a folder cannot be opened, and needs no such thing."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
