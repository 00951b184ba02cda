"""Runs a project's train.py as it is, with one more callback: a probe that measures, or a fault.

    cd PROJECT && python .../benchmarks/watch.py PROBE [train.py's options]

common.Run sets the environment. A probe writes its facts to the file that FACTS names.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from common import Facts, Seat

import train
from smlightning import entry
from smlightning.checkpoints import files
from smlightning.checkpoints.callback import Checkpoints

ON_GPU = torch.cuda.is_available()
WAITS = re.compile(r"aten::_local_scalar_dense|cuda(Stream|Device|Event)Synchronize")
ATTENTION = re.compile(r"attention|fmha|flash|flex", re.IGNORECASE)


def write_facts(facts: dict[str, Any]) -> None:
    if "FACTS" in os.environ and os.environ.get("RANK", "0") == "0":
        Path(os.environ["FACTS"]).write_text(json.dumps(facts))


class Turns(pl.Callback):
    """A turn of a few steps, then the others' (common.take_turns)."""

    def __init__(self) -> None:
        self.seat = Seat()

    def on_train_batch_start(self, *_: Any) -> None:
        self.seat.step()


class Stalls(pl.Callback):
    """Measures how long training waits for a checkpoint, in a turn for each.

    The turn ends when the checkpoint is written.
    """

    def __init__(self) -> None:
        self.seat = Seat()
        self.facts: Facts = {}

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        every: Any = trainer.callbacks  # type: ignore[attr-defined]
        kept: list[Any] = [each for each in every if isinstance(each, Checkpoints)]
        owner, name = (kept[0], "_save") if kept else (trainer, "save_checkpoint")
        save = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> None:
            wait_for_device()
            began, spent = time.perf_counter(), time.thread_time()
            save(*arguments, **options)
            wait_for_device()
            self.facts["seconds"] = time.perf_counter() - began
            self.facts["processor"] = time.thread_time() - spent

        setattr(owner, name, timed)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.facts or not self.seat.number:
            for writer in [each.writer for each in trainer.callbacks if hasattr(each, "writer")]:
                writer.finish()
            self.seat.more = self.facts
            self.seat.end_turn()
            self.facts = {}
        self.seat.number += 1


class Profile(pl.Callback):
    """Waits and attention kernels in STEPS training steps and as many validation batches."""

    STEPS, SKIPPED = 6, 5

    def __init__(self) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        self.kinds = kinds + [torch.profiler.ProfilerActivity.CUDA] * ON_GPU
        self.facts: dict[str, Any] = {}
        self.profile: Any = None

    def _at(self, number: int, kind: str) -> None:
        if number == self.SKIPPED:
            wait_for_device()
            self.profile = torch.profiler.profile(activities=self.kinds)
            self.profile.__enter__()
        if number == self.SKIPPED + self.STEPS and self.profile:
            self.profile.__exit__(None, None, None)
            names = [event.name for event in self.profile.events()]
            waits = [name for name in names if WAITS.search(name)]
            self.facts[f"{kind} waits"] = len(waits) / self.STEPS
            self.facts[f"{kind} attention"] = sorted(set(filter(ATTENTION.search, names)))
            self.profile = None
            write_facts(self.facts)

    def on_train_batch_start(self, trainer: Any, model: Any, batch: Any, number: int) -> None:
        self._at(number, "train")

    def on_validation_batch_start(self, trainer: Any, *arguments: Any) -> None:
        if not trainer.sanity_checking:
            self._at(arguments[2], "validation")


class Fault(pl.Callback):
    """Runs a function of FAULTS on the last rank at step FAULT_STEP."""

    def __init__(self, name: str) -> None:
        self.name = name
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        self.here = os.environ.get("RANK", "0") == str(last)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.here and trainer.global_step == int(os.environ.get("FAULT_STEP", "6")):
            if self.name == KILLED_ONCE_SAVED:
                wait_for_checkpoint(trainer)
            print("it happens", flush=True)
            FAULTS[self.name]()


def wait_for_checkpoint(trainer: Any) -> None:
    """Wait until the thread that writes checkpoints has finished one."""
    [kept] = [each for each in trainer.callbacks if isinstance(each, Checkpoints)]
    deadline = time.monotonic() + 60
    while not files.numbered(kept.directory):
        assert time.monotonic() < deadline, f"no checkpoint in {kept.directory}"
        time.sleep(0.01)


def raise_error() -> None:
    raise ValueError("a broken cable")


def take_all_memory() -> None:
    torch.empty(2**50, dtype=torch.uint8, device="cuda" if ON_GPU else "cpu")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


KILLED_ONCE_SAVED = "is_killed_once_saved"
FAULTS = {
    "raises": raise_error,
    "is_killed": die,
    KILLED_ONCE_SAVED: die,
    "is_stopped": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sleeps": lambda: time.sleep(600),
    "aborts": os.abort,
    "out_of_memory": take_all_memory,
}
PROBES = {"turns": Turns, "stalls": Stalls, "profile": Profile}


def wait_for_device() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def main() -> int:
    name = sys.argv.pop(1)
    probe: pl.Callback = PROBES[name]() if name in PROBES else Fault(name)
    constructor = pl.Trainer

    class Watched(constructor):  # type: ignore[valid-type,misc]
        def __init__(self, *arguments: Any, callbacks: Any = (), **more: Any) -> None:
            super().__init__(*arguments, callbacks=[*callbacks, probe], **more)

    pl.Trainer = Watched  # type: ignore[misc]
    return entry.main(train.train, train.Options, None)


if __name__ == "__main__":
    sys.exit(main())
