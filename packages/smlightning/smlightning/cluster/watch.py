"""The thread that ends this process when its main thread does not: that may wait in native code.

The process ends

- at a second signal, and GRACE seconds after the first one or after `ending.Stopped`;
- LEAVE_SECONDS after another rank has ended or the ranks' store is gone;
- when the hang timeout passes without a mark of progress.

The main thread only changes `state`. This module needs no torch.
"""

import contextlib
import faulthandler
import functools
import math
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field, replace

from smlightning.cluster import ending
from smlightning.cluster.ending import RankOutcome
from smlightning.cluster.store import Ranks, RankStore

SIGNALS = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGUSR1")]
TURN = 1.0  # seconds between two looks at the deadlines; a signal is seen within them
GRACE = 3.0  # seconds in which a process has to leave once nothing is left to save
SAME = 1.0  # seconds in which signals are one: a terminal and torchrun's agent both pass Ctrl-C on
LONGEST = 86_400.0  # seconds of a timer
LEAVE_SECONDS = 10.0  # in which the main thread leaves after another rank has ended
SLOW_FACTOR = 10  # of the hang timeout, while a checkpoint is written: the disk may have failed


@dataclass
class State:
    """Signals and progress of this process; times are of ``time.monotonic()``.

    Attributes:
        requested: name of the signal that the main thread has handled.
        grace: seconds to leave after a signal; infinite while the ranks agree on it.
        advice: printed when a signal ends this process.
        first: time and name of the first signal.
        leave_at: when a signal ends this process.
        session: the ranks that have a hang timeout.
        hang_seconds: the timeout.
        factor: of the timeout.
        marked_at: time of the last progress; infinite while nothing is watched.
    """

    requested: str = ""
    grace: float = GRACE
    advice: str = "nothing was trained yet: start the same command again"
    first: tuple[float, str] = (math.inf, "a signal to another rank")
    leave_at: float = math.inf
    session: Ranks | None = None
    hang_seconds: float = math.inf
    factor: int = 1
    marked_at: float = math.inf


state = State()


def mark(factor: int) -> None:
    """The main thread makes progress; from now on it is watched, with this factor."""
    state.marked_at, state.factor = time.monotonic(), factor  # in this order: the thread reads them


@functools.cache
def start(process: int) -> int:
    """Start the thread of this process; returns the descriptor for ``signal.set_wakeup_fd``.

    Args:
        process: ``os.getpid()``: a forked process has no thread yet.
    """
    reader, writer = socket.socketpair()
    reader.settimeout(TURN)
    writer.setblocking(False)
    threading.Thread(target=_watch, args=(reader,), name="watch", daemon=True).start()
    return writer.detach()


# In the thread


def _watch(reader: socket.socket) -> None:
    session = others = None
    while True:
        number = 0
        with contextlib.suppress(TimeoutError):
            number = reader.recv(1)[0]
        _check_signals(number)
        if session is not ending.ranks():  # one began or ended
            session, others = ending.ranks(), None
            faulthandler.cancel_dump_traceback_later()
            if session and session.store:
                others = _Others(RankOutcome(session.cluster.rank, "lost"), session.store)
        if others:
            others.check()
        if others and state.session is session:
            _check_progress(others.own.rank)


def _check_signals(number: int) -> None:
    """End the process if its time to stop is over or a second signal came."""
    now, (first_at, name) = time.monotonic(), state.first
    if number in SIGNALS:
        if now > first_at + SAME:
            ending.exit_stopped(f"ended by a second signal; {state.advice}")
        state.first = min(state.first, (now, signal.Signals(number).name))
        state.leave_at = min(state.leave_at, now + state.grace)
    if now > min(state.leave_at, ending.stopped_at() + GRACE):
        ending.exit_stopped(f"ended by {name}: the run did not stop in time; {state.advice}")


@dataclass
class _Others:
    """The other ranks of a session.

    Attributes:
        own: how this rank ends after another one has ended.
        store: the main thread's, whose calls are short.
        asking: the thread that asks the store. It may not end: a store on a frozen host does not
            answer, whatever its timeout.
        leave_at: when this rank ends.
    """

    own: RankOutcome
    store: RankStore
    asking: threading.Thread = field(default_factory=threading.Thread)
    leave_at: float = math.inf

    def check(self) -> None:
        """Ask whether another rank has ended; end the process if its time to leave is over."""
        if self.leave_at == math.inf and not self.asking.is_alive():
            self.asking = threading.Thread(target=self._ask, name="ask", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the next turn asks
                self.asking.start()
                self.asking.join(TURN)
        if self.own.kind == "hung" or time.monotonic() > self.leave_at:
            ending.exit_now(self.own)

    def _ask(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone with rank 0
            found = ending.outcomes(self.store)
            if all(outcome.kind == "done" for outcome in found.values()):
                return
            cause = ending.first_cause(found)
            if cause and cause.kind == "hung":
                self.own = replace(cause, rank=self.own.rank, seen=ending.main_thread_location())
            elif self.own.rank not in found:
                ending.publish(self.own, self.store)
        self.leave_at = time.monotonic() + LEAVE_SECONDS


def _check_progress(rank: int) -> None:
    """End the process if the last mark is too old.

    Native code that holds the interpreter's lock stops this thread, too: then the timer, which is
    written in C, ends the process.
    """
    timer = max(SLOW_FACTOR * state.hang_seconds, LEAVE_SECONDS)  # longer than a report takes
    timer = min(timer, LONGEST)  # each turn sets it again, and Python rejects longer ones
    faulthandler.dump_traceback_later(timer, exit=True, file=sys.__stderr__ or 2)
    seconds = state.hang_seconds * state.factor
    if time.monotonic() - state.marked_at > seconds:
        problem = f"no progress for {seconds:.0f} s"
        hint = "compare the ranks' stacks in the log, or raise --hang_seconds"
        seen = ending.main_thread_location()
        ending.exit_now(RankOutcome(rank, "hung", problem, hint, seen))
