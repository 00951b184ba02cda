"""The hang timeout: a rank that makes no progress prints its stacks, and the job ends."""

import faulthandler
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl

from smlightning.cluster import ending, session
from smlightning.training import loop

SLOW_FACTOR = 10  # of the timeout, while a checkpoint is written: the disk may have failed


class _Progress:
    """The main thread's last mark (``time.monotonic()``), infinite while nothing is watched."""

    at = math.inf
    factor = 1


_progress = _Progress()


@contextmanager
def slow() -> Iterator[None]:
    """Multiply the hang timeout by SLOW_FACTOR in the body."""
    _progress.factor = SLOW_FACTOR
    try:
        yield
    finally:
        if _progress.at < math.inf:
            _progress.at = time.monotonic()
        _progress.factor = 1


def idle() -> float:
    """Seconds since the last mark, fewer in `slow`."""
    return (time.monotonic() - _progress.at) / _progress.factor


class HangTimeout(pl.Callback):
    """Ends a job whose ranks wait for one that makes no progress.

    Marks are the beginnings and ends of batches, backward passes and updates. The rank that waits
    longest ends first; the others follow, and the failure file has the line of each rank. A single
    process is not watched: a slow step or a debugger is not a hang.

    Args:
        seconds: longest time from one mark to the next.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = threading.Event()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if session.current_cluster().world_size > 1:
            self._stop()
            self.over = threading.Event()
            threading.Thread(target=self._watch, args=(self.over,), daemon=True).start()

    def on_sanity_check_start(self, *_: Any) -> None:
        self._start()

    def on_train_start(self, *_: Any) -> None:
        self._start()

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._mark(f"step {loop.steps(trainer) + 1}")

    def on_before_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        self._mark(f"backward of step {loop.steps(trainer) + 1}")

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        self._mark(f"update of step {loop.steps(trainer) + 1}")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._mark(f"fetching the batch after step {loop.steps(trainer) + 1}")

    def on_validation_start(self, *_: Any) -> None:
        self._mark("validation")

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._mark("validation")

    def on_train_end(self, *_: Any) -> None:
        _progress.at = math.inf

    def on_test_start(self, *_: Any) -> None:
        self._start()

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        self._mark("test")

    def on_test_end(self, *_: Any) -> None:
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception):
            ending.record(exception)  # before Lightning's clean-up, which waits for the device
        self._stop()

    def _start(self) -> None:
        _progress.at = time.monotonic()

    def _mark(self, activity: str) -> None:
        ending.doing(activity)
        if _progress.at < math.inf:
            _progress.at = time.monotonic()

    def _stop(self) -> None:
        """End the thread: the process may go on, as a notebook or a test runner does."""
        _progress.at = math.inf
        self.over.set()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(min(self.seconds / 10, 1.0)):
            # Native code that holds the interpreter's lock stops this thread, too: then the timer,
            # which is written in C, ends the process.
            timeout = SLOW_FACTOR * self.seconds
            faulthandler.dump_traceback_later(timeout, exit=True, file=sys.__stderr__ or 2)
            if idle() > self.seconds:
                ending.exit_hung(self.seconds)
        faulthandler.cancel_dump_traceback_later()
