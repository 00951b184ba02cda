"""The hang timeout: a rank that makes no progress prints its stacks, and the job ends."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl

from smlightning.cluster import ending, watch
from smlightning.training import loop


@contextmanager
def slow() -> Iterator[None]:
    """Multiply the hang timeout by SLOW_FACTOR in the body."""
    before, watch.state.factor = watch.state.factor, watch.SLOW_FACTOR
    try:
        yield
    finally:
        if watch.state.marked_at < math.inf:
            watch.mark(before)
        watch.state.factor = before


class HangTimeout(pl.Callback):
    """Ends a job whose ranks wait for one that makes no progress.

    Marks are the beginnings and ends of batches. The rank that waits longest ends first; the others
    follow, and the failure file has the line of each rank. A single process is not watched: a slow
    step or a debugger is not a hang.

    It watches from now to the end of the session. Before training, and between training and the
    test, the time from one mark to the next may be SLOW_FACTOR times as long: ranks read, prepare
    and load data.

    Args:
        seconds: longest time from one mark to the next.
    """

    def __init__(self, seconds: float) -> None:
        ranks = ending.ranks()
        if ranks and ranks.store:
            watch.state.session, watch.state.hang_seconds = ranks, seconds
            watch.mark(watch.SLOW_FACTOR)

    def setup(self, *_: Any, **__: Any) -> None:
        _mark("before training")
        watch.state.factor = watch.SLOW_FACTOR

    on_fit_start = setup

    def on_train_start(self, *_: Any, **__: Any) -> None:
        watch.mark(1)

    on_sanity_check_start = on_test_start = on_train_start

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        _mark(f"step {loop.steps(trainer) + 1}")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        _mark(f"fetching the batch after step {loop.steps(trainer) + 1}")

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        _mark("validation")

    on_validation_batch_end = on_validation_start

    def on_train_end(self, *_: Any) -> None:
        _mark("after training")
        watch.state.factor = watch.SLOW_FACTOR

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        _mark("test")

    def on_test_end(self, *_: Any) -> None:
        watch.state.marked_at = math.inf  # the ranks wait for rank 0, which saves

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception):
            ending.record(exception)  # before Lightning's clean-up, which waits for the device
        watch.state.marked_at = math.inf


def _mark(activity: str) -> None:
    ending.doing(activity)
    if watch.state.marked_at < math.inf:
        watch.mark(watch.state.factor)
