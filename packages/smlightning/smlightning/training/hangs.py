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

from smlightning.cluster import ending
from smlightning.training import loop

SLOW_FACTOR = 10  # of the timeout, while a checkpoint is written: the disk may have failed


class _Progress:
    """The main thread's last mark (``time.monotonic()``), infinite while nothing is watched."""

    at = math.inf
    factor = 1

    def mark(self, factor: int) -> None:
        self.at, self.factor = time.monotonic(), factor


_progress = _Progress()


@contextmanager
def slow() -> Iterator[None]:
    """Multiply the hang timeout by SLOW_FACTOR in the body."""
    before = _progress.factor
    _progress.factor = SLOW_FACTOR
    try:
        yield
    finally:
        if _progress.at < math.inf:
            _progress.at = time.monotonic()
        _progress.factor = before


def idle() -> float:
    """Seconds since the last mark, fewer in `slow`."""
    return (time.monotonic() - _progress.at) / _progress.factor


class HangTimeout(pl.Callback):
    """Ends a job whose ranks wait for one that makes no progress.

    Marks are the beginnings and ends of batches, backward passes and updates. The rank that waits
    longest ends first; the others follow, and the failure file has the line of each rank. A single
    process is not watched: a slow step or a debugger is not a hang.

    It watches from now to the end of the session. Before training, and between training and the
    test, the time from one mark to the next may be SLOW_FACTOR times as long: ranks read, prepare
    and load data.

    Args:
        seconds: longest time from one mark to the next.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        ranks = ending.ranks()
        if ranks and ranks.store:
            _progress.mark(SLOW_FACTOR)
            threading.Thread(target=self._watch, args=(ranks.over,), daemon=True).start()

    def setup(self, *_: Any, **__: Any) -> None:
        self._begin("before training")

    def on_fit_start(self, *_: Any) -> None:
        self._begin("before training")

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
        self._begin("after training")

    def on_test_start(self, *_: Any) -> None:
        self._start()

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        self._mark("test")

    def on_test_end(self, *_: Any) -> None:
        _progress.at = math.inf  # the ranks wait for rank 0, which saves

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception):
            ending.record(exception)  # before Lightning's clean-up, which waits for the device
        _progress.at = math.inf

    def _start(self) -> None:
        _progress.mark(1)

    def _begin(self, activity: str) -> None:
        self._mark(activity)
        _progress.factor = SLOW_FACTOR

    def _mark(self, activity: str) -> None:
        ending.doing(activity)
        if _progress.at < math.inf:
            _progress.at = time.monotonic()

    def _watch(self, over: threading.Event) -> None:
        """Until the end of the session: the process may go on, as a test runner does."""
        while not over.wait(min(self.seconds / 10, 1.0)):
            # Native code that holds the interpreter's lock stops this thread, too: then the timer,
            # which is written in C, ends the process.
            timeout = SLOW_FACTOR * self.seconds
            faulthandler.dump_traceback_later(timeout, exit=True, file=sys.__stderr__ or 2)
            if idle() > self.seconds:
                ending.exit_hung(self.seconds * _progress.factor)
        faulthandler.cancel_dump_traceback_later()
