"""Hangs: a rank that stops taking part is named, every rank says where it is, and the job ends.

A thread of each rank writes every few seconds to the store how far its training has come; rank 0's
compares. Rank 1 deputises for rank 0. A rank that cannot reach the store any more ends by itself.
"""

import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any

import pytorch_lightning as pl

from smlightning.cluster import last_words, session, signals
from smlightning.cluster.session import CAUSE_KEY, End, RankStore, end_key
from smlightning.errors import write_failure
from smlightning.training import loop as loop_state
from smlightning.training.hangs import (
    Heard,
    Heartbeat,
    find_hang,
    main_thread_frames,
    main_thread_place,
)

VERDICT_FRACTION = 0.6  # of the hang timeout; the rest is for the ranks to read it, and for stacks
HEARTBEATS = 30  # in the hang timeout
FOLLOW_SECONDS = 3.0  # in which a rank has to notice by itself that another one failed
# So many times as long the first batches of a phase may take: compilers, caches and workers start.
WARM_UP_FACTOR = 10
PAUSE_FACTOR = 30  # and so many times what pauses it: a disk that takes a checkpoint may have died
# A hang takes at least so many times as long as the slowest step before it, and at most as long as
# the first batches may. On a GPU the slowest step is a whole batch: all of its marks fall while it
# is queued, and the ranks then wait for it in `Agreement`.
SLOW_STEP_FACTOR = 3

HANG_KEY = "hang"  # the verdict
PAUSES_KEY = "pauses"  # how often a rank was seen to pause


@dataclass
class _Pause:
    depth: int = 0  # greater than 0 while all ranks wait on purpose
    began: float = 0.0  # time.monotonic() when they began to
    ended: float = 0.0  # time.monotonic() when they last stopped waiting


_pause = _Pause()


@contextmanager
def pause_watchdog() -> Iterator[None]:
    """The body may take PAUSE_FACTOR times as long without being a hang."""
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
    """How far this rank's training has come.

    Attributes:
        timeout: seconds without a mark that are a hang, unless steps are slow.
        slowest: seconds from one mark to the next, at most, since the first batch of training.
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
        last_words.note(f"in {activity}")

    def enter(self, phase: str, *, warm: bool = False) -> None:
        """Go on in ``phase``; its first batches are over once that was ``warm``."""
        if warm:
            self.warm_phases.add(phase)
        self.is_warm = phase in self.warm_phases

    def idle(self) -> float:
        """Seconds since the last mark, as far as they count."""
        if not self.is_watched:
            return 0.0
        if _pause.depth:
            return (time.monotonic() - _pause.began) / PAUSE_FACTOR
        return self.seconds() / self._patience()

    def seconds(self) -> float:
        """Since the last mark, or the last pause."""
        return time.monotonic() - max(self.at, _pause.ended)

    def _patience(self) -> float:
        """How many times as long as the timeout this step may take."""
        if not self.is_warm:
            return WARM_UP_FACTOR
        slow = SLOW_STEP_FACTOR * self.slowest / (self.timeout * VERDICT_FRACTION)
        return min(max(1.0, slow), WARM_UP_FACTOR)


class HangWatchdog(pl.Callback):
    """Ends a job whose ranks wait for one that takes no part any more.

    Marks are the beginnings and ends of batches, backward passes and updates. A rank that fails
    says so at once, and one that does not notice, since it waits in a collective, ends with that
    cause. One process alone is not watched: nobody waits for it, and a slow step, or a debugger, is
    no hang.

    Args:
        seconds: longest time from one mark to the next; more where the steps before are slow.
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

    # What training is doing

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
            # Before Lightning's own clean-up, which waits for the device.
            session.record_failure(exception)
        self._stop()

    def _start(self) -> None:
        _pause_while_compiling()
        self.progress.mark("training begins")
        self.last_answer = time.monotonic()
        self.progress.is_watched = self.cluster.world_size > 1

    def _stop(self) -> None:
        """End the threads: the process may live on, as a notebook or a test runner."""
        self.progress.is_watched = False
        self.over.set()
        self.threads.clear()

    # Threads

    def _place(self) -> str:
        return f"{self.progress.activity}, {main_thread_place(self.outer_code)}"

    def _guard(self, over: threading.Event) -> None:
        """Watch without any other rank: neither this rank nor the store may be silent for long."""
        me = self.cluster.name(self.cluster.rank)
        while not over.is_set():
            # Native code that holds the interpreter's lock stops this thread as well: then the
            # timer, which is of C, ends the process.
            patience = self.seconds if self.progress.is_warm else self.seconds * WARM_UP_FACTOR
            faulthandler.dump_traceback_later(patience, exit=True, file=sys.__stderr__ or 2)
            over.wait(self.interval)
            silent = time.monotonic() - self.last_answer
            idle = self.progress.idle()
            if self.progress.is_watched and silent > self.seconds * VERDICT_FRACTION:
                problem = f"{self.cluster.name(0)} has not answered for {silent:.0f} s"
                self._exit(End("failed", f"{problem}, {me} was in {self._place()}", "see its log"))
            elif idle > self.seconds * 0.9:
                seconds = self.progress.seconds()
                problem = f"{me} stopped {seconds:.0f} s ago in {self._place()}"
                self._exit(End("failed", problem, "see its stacks above"))
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
                    self._follow(store, End.loads(cause), over)
                    return
                verdict = store.get(HANG_KEY)
                if verdict is not None:
                    # Leaving breaks the others' collectives: give all the time to read it.
                    time.sleep(2 * self.interval)
                    self._exit(End.loads(verdict), is_first=False)
                pauses_before, pauses = pauses, store.add(PAUSES_KEY, int(_pause.depth > 0))
                if pauses != pauses_before:  # a rank compiles or writes: the others wait for it
                    self.progress.at = time.monotonic()
                if self.progress.is_watched and self.cluster.rank < 2:
                    self._judge(store, latest)
                else:
                    latest.clear()
                self.last_answer = time.monotonic()
            except RuntimeError:  # the store is gone, with rank 0: the collectives say so as well
                return
            over.wait(self.interval)

    def _write_beat(self, store: RankStore, number: int) -> None:
        now = self.progress
        heartbeat = Heartbeat(number, now.marks, now.idle(), self._place(), now.seconds())
        store.set(_heartbeat_key(self.cluster.rank), heartbeat.dumps())

    def _judge(self, store: RankStore, latest: dict[int, Heard]) -> None:
        """Read every rank's heartbeat into ``latest``, and end the job where that shows a hang."""
        for rank in range(self.cluster.world_size):
            text = store.get(_heartbeat_key(rank))
            if text is None:
                continue
            heartbeat = Heartbeat.loads(text)
            if rank not in latest or latest[rank].heartbeat != heartbeat:
                latest[rank] = Heard(heartbeat, time.monotonic())
        # The deputy judges later.
        limit = self.seconds * VERDICT_FRACTION + self.cluster.rank * 2 * self.interval
        verdict = find_hang(latest, time.monotonic(), limit, self.cluster)
        if verdict:
            store.set(HANG_KEY, verdict.dumps())
            time.sleep(4 * self.interval)  # the store may be this process: all read it first
            self._exit(verdict)

    def _follow(self, store: RankStore, cause: End, over: threading.Event) -> None:
        """Another rank failed: leave with its cause, unless this one notices it itself."""
        key = end_key(self.cluster.rank)
        if store.has(key):
            return
        store.set(key, End("lost").dumps())  # the other rank waits until all have read its cause
        if not over.wait(FOLLOW_SECONDS):
            write_failure(str(cause))
            me = self.cluster.name(self.cluster.rank)
            os.write(2, f"error: {me} had to end: {cause}\n".encode())
            os._exit(1)

    def _exit(self, verdict: End, *, is_first: bool = True) -> None:
        """Print the stacks, then the verdict, and end this process, whatever its threads wait for.

        Args:
            is_first: whether no other rank prints the verdict.
        """
        write_failure(str(verdict))
        os.write(2, f"stacks of {self.cluster.name(self.cluster.rank)}:\n".encode())
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        if is_first:
            os.write(2, f"error: {verdict}\n".encode())
        os._exit(1)


def _heartbeat_key(rank: int) -> str:
    return f"heartbeat/{rank}"
