"""What a rank with a pretended GPU does in these tests, and what it records."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smlightning.training import imports

imports.lightning()

import pretended  # noqa: E402
import pytorch_lightning as pl  # noqa: E402

from smlightning.cluster import signals  # noqa: E402
from smlightning.reports import curves  # noqa: E402
from smlightning.testing import owner, recording  # noqa: E402

Write = Callable[[dict[str, Any]], Any]
FIRST_STEPS = 4  # in which the package checks the ranks' batches and weights
PROJECT = next(Path(__file__).parents[3].glob("{{*}}"))
TASKS = {
    "classification": [],
    "language-model": [
        str(PROJECT / "tasks/language-model" / folder) for folder in ("src", "tests")
    ],
}


class Phases(pl.Callback):
    """Says in which part of a run each wait is: a training step goes to the next one's start, with
    the batch that is fetched for it.
    """

    def __init__(self, machine: pretended.Machine, stop_at: int = 0) -> None:
        self.machine = machine
        self.stop_at = stop_at
        self.counts = {"steps": 0, "validation batches": 0}

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.counts["steps"] += 1
        self.machine.phase = self.training_phase()
        if self.stop_at and trainer.global_step == self.stop_at:
            signals._state.requested = "SIGTERM"

    def on_validation_batch_start(self, *_: Any) -> None:
        self.machine.phase = "validation batch"
        self.counts["validation batches"] += 1

    def _end(self, *_: Any) -> None:
        self.machine.phase = ""

    on_validation_start = on_validation_epoch_end = on_train_epoch_end = on_train_end = _end

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self.machine.phase = self.training_phase() if trainer.training else ""

    def training_phase(self) -> str:
        return "step" if self.counts["steps"] > FIRST_STEPS else "first steps"


def train(write: Write, task: str, options: dict[str, Any], stop_at: int = 0) -> None:
    """Run train.py of a task; with ``stop_at`` it is told to stop at that step."""
    sys.path[:0] = TASKS[task]
    machine = pretended.install(gpus=2)
    for name in owner.MODULES:
        sys.modules.pop(name, None)
    owner.load.cache_clear()
    train_py = owner.load().train
    phases = Phases(machine, stop_at)

    class ObservedTrainer(pl.Trainer):
        def __init__(self, *args: Any, callbacks: Any = None, **more: Any) -> None:
            super().__init__(*args, callbacks=[phases, *(callbacks or [])], **more)

    pl.Trainer = ObservedTrainer  # type: ignore[misc]
    curves.save_figure = recording.close_unseen
    stopped = False
    try:
        train_py.train(**options)
    except signals.Stopped:
        stopped = True
    write({**machine.seen.as_record(), **phases.counts, "stopped": stopped})
