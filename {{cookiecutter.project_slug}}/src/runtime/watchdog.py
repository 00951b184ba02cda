"""Hangs: a rank that stops taking part is named, every rank says what it was doing, and the job ends.

A thread of each rank lays down every few seconds how far its training has come; rank 0's compares. In a hang the ranks
wait for one another in some collective, and the one that has come least far is the one they wait for. A process that
is paused or lost lays nothing down. Rank 1 deputises for rank 0, and whoever nobody speaks to any more ends by itself.
"""

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from runtime import loop_state, ranks, signals
from runtime.report import write_failure

VERDICT_FRACTION = 0.6  # of the time allowed passes before a verdict; the rest is for the ranks to read it, and stacks
BEATS = 30  # in the time allowed
FOLLOW_SECONDS = 3.0  # in which a rank has to notice by itself that another one failed
FIRST = 10  # times as long may the first batches of a phase take: compilers, caches and workers start

_pauses = 0  # greater than 0 while all ranks wait on purpose
_pause_ended = 0.0  # when they last stopped waiting


@contextmanager
def pause_watchdog() -> Iterator[None]:
    """What is done in here may take its time."""
    global _pauses, _pause_ended
    _pauses += 1
    try:
        yield
    finally:
        _pause_ended = time.monotonic()  # first: a thread may look in between
        _pauses -= 1


@cache
def _pause_while_compiling() -> None:
    from torch._dynamo.callback import callback_handler

    compiling = ExitStack()
    callback_handler.register_start_callback(lambda *_: compiling.enter_context(pause_watchdog()))
    callback_handler.register_end_callback(lambda *_: compiling.close())


class HangWatchdog(pl.Callback):
    """Gives every rank `seconds` from one mark to the next: batches' beginnings and ends, backward passes, steps.

    A rank that fails says so at once, and one that does not notice, since it waits in a collective, ends with that
    cause. One process alone is not watched: nobody waits for it, and a slow step, or a debugger, is no hang.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.cluster = seconds, ranks.cluster()
        self.interval = min(seconds / BEATS, 2.0)
        self.marks, self.marked, self.what = 0, time.monotonic(), "before training"
        self.armed = self.warm = False
        self.warmed: set[str] = set()  # phases whose first batches are over
        self.batches = 0
        self.heard = time.monotonic()
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def _mark(self, what: str) -> None:
        self.marks += 1
        self.marked, self.what = time.monotonic(), what

    def _idle(self) -> float:
        """Seconds since the last mark, as far as they count."""
        if not self.armed or _pauses:
            return 0.0
        return (time.monotonic() - max(self.marked, _pause_ended)) / (1 if self.warm else FIRST)

    def setup(self, *_: Any, **__: Any) -> None:
        if self.cluster.world_size > 1 and not self.threads:
            self.over = threading.Event()  # not the last one's, which its threads may not have seen yet
            parts = (self._guard, self._beat)
            self.threads = [threading.Thread(target=part, args=(self.over,), daemon=True) for part in parts]
            for thread in self.threads:
                thread.start()

    def on_train_start(self, *_: Any) -> None:
        _pause_while_compiling()
        self._start()

    def on_test_start(self, *_: Any) -> None:
        self._warm_up("test", False)
        self._start()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._mark(f"step {loop_state.steps(trainer) + 1}")

    def on_before_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        self._mark(f"backward of step {loop_state.steps(trainer) + 1}")

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        self._mark(f"update of step {loop_state.steps(trainer) + 1}")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.batches += 1
        self._warm_up("train", self.batches > trainer.accumulate_grad_batches)
        self._mark(f"fetching the batch after step {loop_state.steps(trainer) + 1}")

    def on_validation_start(self, *_: Any, over: bool = False) -> None:
        self._warm_up("validation", over)
        self._mark("validation")

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self.on_validation_start(over=True)

    def on_validation_end(self, *_: Any) -> None:
        self._warm_up("train", False)

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        self._warm_up("test", True)
        self._mark("test")

    def on_train_end(self, *_: Any) -> None:
        self.armed = False

    def on_test_end(self, *_: Any) -> None:
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception) and not signals.leaving():
            ranks.record_failure(exception)  # before Lightning's own clean-up, which waits for the device
        self._stop()

    def _warm_up(self, phase: str, over: bool) -> None:
        """The first batches of a phase may take FIRST times as long."""
        if over:
            self.warmed.add(phase)
        self.warm = phase in self.warmed

    def _start(self) -> None:
        self._mark("training begins")
        self.heard = time.monotonic()
        self.armed = self.cluster.world_size > 1

    def _stop(self) -> None:
        """Let go of the process: it may live on, as a notebook or a test runner."""
        self.armed = False
        self.over.set()
        self.threads.clear()

    def _guard(self, over: threading.Event) -> None:
        """What needs no other rank: neither this rank nor the store may be silent for long."""
        me = self.cluster.name(self.cluster.rank)
        while not over.is_set():
            # Should native code hold the interpreter's lock, this thread stands too, and C ends the process.
            faulthandler.dump_traceback_later(
                self.seconds * FIRST if not self.warm else self.seconds, exit=True, file=sys.__stderr__ or 2
            )
            over.wait(self.interval)
            unheard = time.monotonic() - self.heard
            if self.armed and unheard > self.seconds * VERDICT_FRACTION:
                self._end(f"{self.cluster.name(0)} has not answered for {unheard:.0f} s; {me} was in {self._where()}")
            elif (idle := self._idle()) > self.seconds * 0.9:
                self._end(f"{me} stopped {idle:.0f} s ago in {self.what}, {self._where()}")
        faulthandler.cancel_dump_traceback_later()

    def _beat(self, over: threading.Event) -> None:
        store = ranks.another_store()
        keys = [f"beat/{rank}" for rank in range(self.cluster.world_size)]
        judge = self.cluster.rank < 2
        limit = self.seconds * VERDICT_FRACTION + self.cluster.rank * 2 * self.interval
        latest: dict[int, tuple[str, float]] = {}
        beats = pauses = 0
        while not over.is_set():
            beats += 1
            mine = {"beat": beats, "marks": self.marks, "idle": self._idle(), "at": f"{self.what}, {self._where()}"}
            try:
                store.set(keys[self.cluster.rank], json.dumps(mine))
                if store.check(["cause"]):
                    self._follow(store, over)
                    return
                if store.check(["hang"]):
                    verdict = store.get("hang").decode()
                    time.sleep(2 * self.interval)  # leaving breaks the others' collectives: all read first
                    self._end(verdict, first=False)
                paused, pauses = pauses, store.add("pauses", int(_pauses > 0))
                if paused != pauses:  # a rank compiles, or writes: the others wait for it
                    self.marked = time.monotonic()
                if judge and self.armed:
                    for rank, key in enumerate(keys):
                        text = store.get(key).decode() if store.check([key]) else ""
                        if latest.get(rank, ("", 0.0))[0] != text or not text:
                            latest[rank] = (text, time.monotonic())
                    if verdict := self._judge(latest, limit):
                        store.set("hang", verdict)
                        time.sleep(4 * self.interval)  # the store may be this process: all read first
                        self._end(verdict)
                else:
                    latest.clear()
                self.heard = time.monotonic()
            except RuntimeError:  # the store is gone, and with it rank 0: the collectives say so as well
                return
            over.wait(self.interval)

    def _follow(self, store: Any, over: threading.Event) -> None:
        """Another rank failed: leave with its cause, unless this one, on gloo, notices by itself."""
        cause, mine = store.get("cause").decode(), f"end/{self.cluster.rank}"
        if store.check([mine]):
            return
        store.set(mine, "")  # it was read, which the other one waits for
        if not over.wait(FOLLOW_SECONDS):
            write_failure(cause)
            os.write(2, f"error: {self.cluster.name(self.cluster.rank)} had to end: {cause}\n".encode())
            os._exit(1)

    def _judge(self, latest: dict[int, tuple[str, float]], limit: float) -> str:
        """The sentence that ends the job, if it has to end."""
        now = time.monotonic()
        beats = {rank: json.loads(text) for rank, (text, _) in latest.items() if text}
        silent = {rank: now - since for rank, (text, since) in latest.items() if text and now - since > limit}
        if silent:
            named = [f"{self.cluster.name(rank)} has not been heard of for {s:.0f} s" for rank, s in silent.items()]
        elif beats and max(beat["idle"] for beat in beats.values()) > limit:
            least = min(beat["marks"] for beat in beats.values())
            late = {rank: beat for rank, beat in beats.items() if beat["marks"] == least}
            if len(late) == len(latest) > 1:
                named = ["no rank goes on, and all are in one place: look at the network between the hosts"]
            else:
                ago = {rank: beat["idle"] + now - latest[rank][1] for rank, beat in late.items()}
                named = [f"{self.cluster.name(rank)} stopped taking part {s:.0f} s ago" for rank, s in ago.items()]
        else:
            return ""
        doing = [f"rank {rank} was in {beat['at']}" for rank, beat in sorted(beats.items())[:8]]
        return "; ".join([*named, *doing])

    def _where(self) -> str:
        """Where the main thread is: the innermost line of this project, else of any code."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = traceback.extract_stack(frame) if frame else []
        src = Path(__file__).parents[1]  # source files of this project: runtime/ and the owner's beside it
        outer = (src / "train.py", src / "runtime" / "signals.py")  # of every rank's stack, whatever it does
        own = [f for f in stack if src in Path(f.filename).parents and Path(f.filename) not in outer]
        owners = [f for f in own if Path(f.filename).parent == src]  # it says more than the machinery that called it
        mine = owners or own or stack
        return f"{Path(mine[-1].filename).name}:{mine[-1].lineno} {mine[-1].name}" if mine else "no code"

    def _end(self, verdict: str, first: bool = True) -> None:
        """Print the stacks, then the verdict, and end this process, whatever its other threads wait for."""
        write_failure(verdict)
        os.write(2, f"stacks of {self.cluster.name(self.cluster.rank)}:\n".encode())
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        if first:
            os.write(2, f"error: {verdict}\n".encode())
        os._exit(1)
