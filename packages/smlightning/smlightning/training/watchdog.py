"""Detects hangs: the log says which rank hangs and where every rank is, and the job ends.

A thread of each rank writes its progress to the store every few seconds; rank 0 compares, and rank
1 does if rank 0 cannot. A rank that cannot reach the store any more ends by itself.
"""

import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from types import CodeType
from typing import Any

import pytorch_lightning as pl

from smlightning.cluster import session, signals
from smlightning.cluster.session import CAUSE_KEY, End, RankStore, end_key, set_end
from smlightning.errors import write_failure
from smlightning.training import loop as loop_state
from smlightning.training.hangs import (
    Heard,
    Heartbeat,
    find_hang,
    main_thread_frames,
    main_thread_place,
)

VERDICT_FRACTION = 0.6  # of the hang timeout; the rest is time to read the verdict and print stacks
HEARTBEATS = 30  # per hang timeout
FOLLOW_SECONDS = 3.0  # time for a rank to notice by itself that another one failed
# Factors of the timeout: for the first batches of a phase (compilers, caches and workers start),
# and for a pause (the disk that writes a checkpoint may have failed).
WARM_UP_FACTOR = 10
PAUSE_FACTOR = 30
# A hang takes at least this many times the slowest step before it, and at most the time of the
# first batches. On a GPU the slowest step is a whole batch: all of its marks fall while it is
# queued, and the ranks then wait for it in `Agreement`.
SLOW_STEP_FACTOR = 3

HANG_KEY = "hang"  # the verdict
PAUSES_KEY = "pauses"  # heartbeats of ranks that pause


@dataclass
class _Pause:
    depth: int = 0  # greater than 0 while all ranks wait on purpose
    began: float = 0.0  # time.monotonic() of the beginning
    ended: float = 0.0  # time.monotonic() of the last end


_pause = _Pause()


@contextmanager
def pause_watchdog() -> Iterator[None]:
    """Multiply the hang timeout by PAUSE_FACTOR in the body."""
    if not _pause.depth:
        _pause.began = time.monotonic()
    _pause.depth += 1
    try:
        yield
    finally:
        _pause.ended = time.monotonic()  # before the depth: a thread may look in between
        _pause.depth -= 1


@cache
def _pause_while_compiling() -> None:
    from torch._dynamo.callback import callback_handler

    compiling = ExitStack()
    callback_handler.register_start_callback(lambda *_: compiling.enter_context(pause_watchdog()))
    callback_handler.register_end_callback(lambda *_: compiling.close())


@dataclass
class Progress:
    """Progress of this rank's training.

    Attributes:
        timeout: seconds without a mark that are a hang, unless steps are slow.
        slowest: longest time between two marks since the first batch of training.
    """

    timeout: float = math.inf
    slowest: float = 0.0
    has_trained: bool = False  # on a batch
    marks: int = 0
    at: float = field(default_factory=time.monotonic)  # of the last mark
    activity: str = "before training"
    is_watched: bool = False
    is_warm: bool = False  # the first batches of this phase are over
    warm_phases: set[str] = field(default_factory=set)

    def mark(self, activity: str) -> None:
        if self.is_watched and self.has_trained:
            self.slowest = max(self.slowest, self.seconds())
        self.marks += 1
        self.at = time.monotonic()
        self.activity = activity

    def enter(self, phase: str, *, warm: bool = False) -> None:
        """Enter a phase; after a ``warm`` entry its first batches are over."""
        if warm:
            self.warm_phases.add(phase)
        self.is_warm = phase in self.warm_phases

    def idle(self) -> float:
        """Seconds since the last mark, divided by the patience with this step."""
        if not self.is_watched:
            return 0.0
        if _pause.depth:
            return (time.monotonic() - _pause.began) / PAUSE_FACTOR
        return self.seconds() / self._patience()

    def seconds(self) -> float:
        """Seconds since the last mark or the last pause."""
        return time.monotonic() - max(self.at, _pause.ended)

    def _patience(self) -> float:
        """The factor by which this step may exceed the timeout."""
        if not self.is_warm:
            return WARM_UP_FACTOR
        slow = SLOW_STEP_FACTOR * self.slowest / (self.timeout * VERDICT_FRACTION)
        return min(max(1.0, slow), WARM_UP_FACTOR)


class HangWatchdog(pl.Callback):
    """Ends a job whose ranks wait for one that makes no progress.

    Marks are the beginnings and ends of batches, backward passes and updates. A rank that fails
    tells the others at once; one that waits in a collective ends with that cause. A single process
    is not watched: a slow step or a debugger is not a hang.

    Args:
        seconds: longest time from one mark to the next; longer after slow steps.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cluster = session.current_cluster()
        self.interval = min(seconds / HEARTBEATS, 2.0)
        self.progress = Progress(timeout=seconds)
        self.batches = 0
        self.outer_code: frozenset[CodeType] = frozenset()
        self.last_answer = time.monotonic()  # of the store
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def setup(self, *_: Any, **__: Any) -> None:
        self.outer_code = frozenset(frame.f_code for frame in main_thread_frames())
        if self.cluster.world_size == 1 or self.threads:
            return
        self.over = threading.Event()  # the last one's threads may not have seen theirs yet
        for target in (self._guard, self._beat):
            thread = threading.Thread(target=target, args=(self.over,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def on_sanity_check_start(self, *_: Any) -> None:
        self._start()

    def on_train_start(self, *_: Any) -> None:
        self._start()

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.progress.mark(f"step {loop_state.steps(trainer) + 1}")

    def on_before_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        self.progress.mark(f"backward of step {loop_state.steps(trainer) + 1}")

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        self.progress.mark(f"update of step {loop_state.steps(trainer) + 1}")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.batches += 1
        self.progress.enter("train", warm=self.batches > trainer.accumulate_grad_batches)
        self.progress.mark(f"fetching the batch after step {loop_state.steps(trainer) + 1}")
        self.progress.has_trained = True

    def on_validation_start(self, *_: Any) -> None:
        self.progress.enter("validation")
        self.progress.mark("validation")

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self.progress.enter("validation", warm=True)
        self.progress.mark("validation")

    def on_validation_end(self, *_: Any) -> None:
        self.progress.enter("train")

    def on_train_end(self, *_: Any) -> None:
        self.progress.is_watched = False

    def on_test_start(self, *_: Any) -> None:
        self.progress.enter("test")
        self._start()

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        self.progress.enter("test", warm=True)
        self.progress.mark("test")

    def on_test_end(self, *_: Any) -> None:
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception) and not signals.leaving():
            # before Lightning's clean-up, which waits for the device
            session.record_failure(exception)
        self._stop()

    def _start(self) -> None:
        _pause_while_compiling()
        self.progress.mark("training begins")
        self.last_answer = time.monotonic()
        self.progress.is_watched = self.cluster.world_size > 1

    def _stop(self) -> None:
        """End the threads: the process may go on, as a notebook or a test runner does."""
        self.progress.is_watched = False
        self.over.set()
        self.threads.clear()

    def _place(self) -> str:
        return f"{self.progress.activity}, {main_thread_place(self.outer_code)}"

    def _guard(self, over: threading.Event) -> None:
        """Watch this rank and the store, without the other ranks."""
        me = self.cluster.name(self.cluster.rank)
        while not over.is_set():
            # Native code that holds the interpreter's lock stops this thread, too: then the timer,
            # which is written in C, ends the process.
            patience = self.seconds if self.progress.is_warm else self.seconds * WARM_UP_FACTOR
            faulthandler.dump_traceback_later(patience, exit=True, file=sys.__stderr__ or 2)
            over.wait(self.interval)
            silent = time.monotonic() - self.last_answer
            if self.progress.is_watched and silent > self.seconds * VERDICT_FRACTION:
                problem = f"{self.cluster.name(0)} has not answered for {silent:.0f} s"
                self._exit(End("failed", f"{problem}, {me} was in {self._place()}", "see its log"))
        faulthandler.cancel_dump_traceback_later()

    def _beat(self, over: threading.Event) -> None:
        """Tell the other ranks of this one, and end with them; ranks 0 and 1 judge as well."""
        store = session.connect(self.cluster)
        latest: dict[int, Heard] = {}
        number = pauses = 0
        while not over.is_set():
            number += 1
            try:
                self._write_beat(store, number)
                cause = store.get(CAUSE_KEY)
                if cause is not None:
                    self._follow(store, End(**cause), over)
                    return
                verdict = store.get(HANG_KEY)
                if verdict is not None:
                    # Leaving breaks the others' collectives: give all the time to read it.
                    time.sleep(2 * self.interval)
                    self._exit(End(**verdict), is_first=False)
                pauses_before, pauses = pauses, store.add(PAUSES_KEY, int(_pause.depth > 0))
                if pauses != pauses_before:  # a rank compiles or writes: the others wait for it
                    self.progress.at = time.monotonic()
                if self.progress.is_watched and self.cluster.rank < 2:
                    self._judge(store, latest)
                else:
                    latest.clear()
                self.last_answer = time.monotonic()
            except RuntimeError:  # the store is gone with rank 0: collectives raise an error, too
                return
            over.wait(self.interval)

    def _write_beat(self, store: RankStore, number: int) -> None:
        now = self.progress
        heartbeat = Heartbeat(number, now.marks, now.idle(), self._place(), now.seconds())
        store.set(_heartbeat_key(self.cluster.rank), asdict(heartbeat))

    def _judge(self, store: RankStore, latest: dict[int, Heard]) -> None:
        """Read the heartbeats into ``latest``, and end the job if a rank hangs.

        Rank 1 reads rank 0's only, until rank 0 is silent or training stands still.
        """
        # Rank 1 waits for rank 0's verdict first.
        limit = self.seconds * VERDICT_FRACTION + self.cluster.rank * 2 * self.interval
        silent = time.monotonic() - latest[0].at if 0 in latest else 0.0
        judges = self.cluster.rank == 0 or max(silent, self.progress.idle()) > limit / 2
        keys = {_heartbeat_key(rank): rank for rank in range(self.cluster.world_size)}
        known = store.present([*keys] if judges else [_heartbeat_key(0)])
        for key, values in zip(known, store.get_each(known), strict=True):
            rank, heartbeat = keys[key], Heartbeat(**values)
            if rank not in latest or latest[rank].heartbeat != heartbeat:
                latest[rank] = Heard(heartbeat, time.monotonic())
        verdict = find_hang(latest, time.monotonic(), limit, self.cluster) if judges else None
        if verdict:
            store.set(HANG_KEY, asdict(verdict))
            time.sleep(4 * self.interval)  # the store may be this process: all read it first
            self._exit(verdict)

    def _follow(self, store: RankStore, cause: End, over: threading.Event) -> None:
        """Another rank failed: end with its cause, unless this rank notices the failure itself."""
        if store.has(end_key(self.cluster.rank)):
            return
        # The other rank waits until all have read its cause.
        set_end(store, self.cluster.rank, End("lost"))
        if not over.wait(FOLLOW_SECONDS):
            write_failure(str(cause))
            me = self.cluster.name(self.cluster.rank)
            os.write(2, f"error: {me} ended because {cause}\n".encode())
            os._exit(1)

    def _exit(self, verdict: End, *, is_first: bool = True) -> None:
        """Print the stacks, then the verdict, and end this process.

        Args:
            is_first: this rank prints the verdict.
        """
        write_failure(str(verdict))
        os.write(2, f"stacks of {self.cluster.name(self.cluster.rank)}:\n".encode())
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        if is_first:
            os.write(2, f"error: {verdict}\n".encode())
        os._exit(1)


def _heartbeat_key(rank: int) -> str:
    return f"heartbeat/{rank}"
