"""Ends a rank: failure file, the other ranks, the process group, exit status. Needs no torch.

Each rank that ends appends its `RankOutcome` to one list in the ranks' store. The first one that is
a cause is the cause on every rank, whatever errors the others get from it. A rank without an
outcome CAUSE_SECONDS after another one's counts as killed.

`end` is for the main thread, and returns the error to raise. `exit_now` is for the thread of
watch.py, while the main one waits in native code or in a collective.
"""

import atexit
import contextlib
import faulthandler
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal, NoReturn

from smlightning import errors
from smlightning.cluster.location import Cluster, ClusterError
from smlightning.cluster.store import Ranks, RankStore

STOPPED = 128 + signal.SIGTERM  # the status of a process that a signal stopped
OUTCOMES = "outcomes"  # the key of the list
CAUSES = ("failed", "hung", "stopped")
POLL_SECONDS = 0.05  # how often a waiting rank looks at the store
CAUSE_SECONDS = 5.0  # in which the other ranks report how they ended, after a failure
STOP_SECONDS = 1.5  # the same after a stop: each rank looks once a second, and GRACE is 3 s
LINGER_SECONDS = 0.5  # rank 0 may keep the store: it stays so long for the others to read it
MOST_RANKS = 8  # in a sentence about a hang
# The part of a step, by the innermost of these functions on the stack.
PARTS = {"training_step": "", "backward": "backward of ", "optimizer_step": "update of "}

CONNECTION_ENDED = r"[Cc]onnection (reset|closed|refused|was likely closed)|Broken pipe"
# ncclRemoteError; what NCCL's transports report of a socket (nccl: src/misc/socket.cc); and torch,
# if another rank does not give it NCCL's id (TCPStore.cpp; old torch: Socket Timeout) or this
# rank's watchdog ended NCCL.
NCCL_LOST_A_RANK = (
    r"ncclRemoteError|remote process (exited|exiting)|wait timeout after \d+ms"
    rf"|got error: Socket Timeout|NCCL communicator was aborted|{CONNECTION_ENDED}"
)


@dataclass(frozen=True)
class RankOutcome:
    """How a rank ended.

    Attributes:
        kind: ``done``; ``stopped`` by a signal; ``failed`` by an error of its own; ``hung``; or
            ``lost``: only because another rank ended.
        problem: what happened.
        hint: what to do.
        seen: where a rank that hung was; what NCCL reported to a lost one.
    """

    rank: int
    kind: Literal["done", "stopped", "failed", "hung", "lost"]
    problem: str = ""
    hint: str = ""
    seen: str = ""

    def __str__(self) -> str:
        """One line for a log or the failure file."""
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


@dataclass
class _State:
    """This process's state.

    Attributes:
        stopped_at: ``time.monotonic()`` when `Stopped` was raised.
        activity: what the main thread does, for a sentence about a hang.
        outer: code that is always on its stack, such as the entry file's.
        found: outcomes by rank, as they were last read: the store may be gone when they are needed.
    """

    ranks: Ranks | None = None
    stopped_at: float = math.inf
    activity: str = "before training"
    outer: frozenset[CodeType] = frozenset()
    found: Mapping[int, RankOutcome] = field(default_factory=dict)


_state = _State()


class Stopped(SystemExit):
    """Ends the process with status 143, as the shell reports one that SIGTERM ended."""

    def __init__(self) -> None:
        super().__init__(STOPPED)
        _state.stopped_at = time.monotonic()


def stopped_at() -> float:
    """The time of the last `Stopped`, infinite if there was none.

    A bare ``except:``, as in fsspec's ``exists``, may have swallowed it.
    """
    return _state.stopped_at


# The session


def ranks() -> Ranks | None:
    """The ranks of this process's session."""
    return _state.ranks


def enter(ranks: Ranks) -> None:
    """A session begins."""
    _state.ranks = ranks
    _state.found = {}
    _state.outer = frozenset(frame.f_code for frame in _frames())


def leave() -> None:
    """The session is over."""
    _state.ranks = None


def outcomes(store: RankStore) -> dict[int, RankOutcome]:
    """The outcomes of the ranks that have ended, by rank, the first one first."""
    found: dict[int, RankOutcome] = {}
    for values in store.appended(OUTCOMES):
        found.setdefault(values["rank"], RankOutcome(**values))
    _state.found = found
    return found


def publish(own: RankOutcome, store: RankStore) -> None:
    """Report this rank's outcome to the other ranks."""
    store.append(OUTCOMES, asdict(own))
    if own.kind == "done":  # rank 0 may have left with the store, so reading it would fail
        return
    cause = first_cause(outcomes(store))
    if cause and cause.kind == "failed":  # at once: a launcher may end this process
        _write_failure(cause)


# Ending


def run(job: Callable[[], None]) -> int:
    """Run ``job``; print a mistake of the user as a sentence, any other error with its stack trace.

    Returns:
        The status of the process: 0 when the job is done, else 1. A signal raises `Stopped`.
    """
    try:
        job()
    except Stopped:
        raise
    except (Exception, SystemExit) as error:
        return report(error, 1)
    return 0


def report(error: BaseException, status: int) -> int:
    """Print an error, write it to the failure file unless there is one, and return the status."""
    ignore_ended_workers()
    if stopped_at() < math.inf:  # an import that `Stopped` interrupts may raise any error
        return STOPPED
    error = _actual_error(error)
    if isinstance(error, BrokenPipeError):
        errors.discard_stdout()
    own = _own_outcome(error)
    _write_failure(own)
    user_error = errors.as_user_error(error)
    text = f"error: {user_error}\n"
    if not user_error:
        trace = "".join(traceback.format_exception(error))
        text = f"error: {own}; its stack trace follows\n{trace}"
    print(text, end="", file=sys.stderr)  # in one piece: other ranks print theirs at the same time
    return status


def record(error: BaseException) -> None:
    """Report an error to the other ranks at once: clean-up that waits for the device may follow."""
    ranks = _state.ranks
    if ranks and ranks.store and stopped_at() == math.inf:
        with contextlib.suppress(RuntimeError):
            publish(_own_outcome(error), ranks.store)


def end(error: BaseException) -> BaseException:
    """End this rank: report to the other ranks, write the failure file, leave the process group.

    Returns:
        The error to raise: `Stopped` if a signal to any rank is the cause; a ClusterError if
        another rank's end is; else the error itself.
    """
    error = _actual_error(error)
    own, ranks = _own_outcome(error), _state.ranks
    if own.kind != "stopped":
        ignore_ended_workers()
        with contextlib.suppress(ValueError):  # not the main thread
            # A launcher that ends the remaining ranks leaves them time to say why.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cause = own
    if ranks and ranks.store:
        with contextlib.suppress(RuntimeError):  # the store is gone
            publish(own, ranks.store)
        _leave_broken_group(error)
        cause = _cause(own, ranks.cluster, *_wait(own, ranks.cluster, ranks.store))
    if cause.kind != "stopped":
        _write_failure(cause)
    if own.kind != "lost" or cause.rank == own.rank or not ranks:
        return error
    if cause.kind == "stopped":
        return Stopped()
    return ClusterError(f"{_name(own.rank)} ended because {cause.problem}", cause.hint)


def exit_now(own: RankOutcome) -> NoReturn:
    """End this process, while its main thread waits in native code or for a rank."""
    if own.kind == "hung":
        _print(f"stacks of {_name(own.rank)}:")
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    cause, ranks = own, _state.ranks
    if ranks and ranks.store:
        found, seconds = _without_store(own, ranks.cluster), CAUSE_SECONDS + 2 * LINGER_SECONDS
        # In a thread: a store on a frozen host does not answer.
        with contextlib.suppress(Exception):
            asking = ThreadPoolExecutor(1).submit(_ask, own, ranks.cluster, ranks.store)
            found = asking.result(seconds)
        cause = _cause(own, ranks.cluster, *found)
    if cause.kind != "stopped":
        _write_failure(cause)
    if own.kind != "stopped":
        is_own = cause.kind == "hung" or cause.rank == own.rank
        _print(f"error: {'' if is_own else f'{_name(own.rank)} ended because '}{cause}")
    os._exit(STOPPED if "stopped" in (own.kind, cause.kind) else 1)


def exit_stopped(reason: str) -> NoReturn:
    """End this process after a signal."""
    _print(reason)
    exit_now(_stopped())


def exit_if_stopped() -> None:
    """Exit with 143 before Python restores the system's handlers: SIGINT would make it 130."""
    if stopped_at() < math.inf:
        _exit(STOPPED)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STOPPED if stopped_at() < math.inf else status)


def ignore_ended_workers() -> None:
    """After an error: torch's handler of SIGCHLD no longer raises another one.

    Workers of one loader often die together, and the second may die while the error of the first
    is reported.
    """
    with contextlib.suppress(AttributeError, ValueError):  # Windows; not the main thread
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _write_failure(outcome: RankOutcome) -> None:
    """Write SageMaker's file output/failure, unless it exists.

    Its first 1024 characters become the job's FailureReason. If the file is missing, the toolkit
    writes what it caught of standard error from the first line with a Python exception: often not
    the cause.
    """
    folder = os.environ.get("SM_OUTPUT_DIR")
    if folder is None:
        return
    file = Path(folder) / "failure"
    # FileExistsError, too: the first text stays. The disk may be full.
    with contextlib.suppress(OSError), file.open("x", encoding="utf-8") as stream:
        stream.write(str(outcome))


# The cause

# Outcomes by rank, and the ranks that reported none.
_Found = tuple[dict[int, RankOutcome], list[int]]


def _ask(own: RankOutcome, cluster: Cluster, store: RankStore) -> _Found:
    publish(own, store)
    return _wait(own, cluster, store)


def _wait(own: RankOutcome, cluster: Cluster, store: RankStore) -> _Found:
    """Wait until all ranks have ended, for CAUSE_SECONDS at most.

    A stopped rank leaves at once, but rank 0 waits for STOP_SECONDS: it may keep the store.
    """
    seconds = CAUSE_SECONDS
    if own.kind == "stopped":
        seconds = 0.0 if own.rank else STOP_SECONDS
    deadline = time.monotonic() + seconds
    try:
        found = outcomes(store)
        while len(found) < cluster.world_size and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            found = outcomes(store)
        if own.rank == 0:
            time.sleep(LINGER_SECONDS)
    except RuntimeError:
        return _without_store(own, cluster)
    return found, [rank for rank in range(cluster.world_size) if rank not in found]


def _without_store(own: RankOutcome, cluster: Cluster) -> _Found:
    """The outcomes known once the store does not answer: its host or process, rank 0, is gone."""
    known = {**_state.found}
    known.setdefault(own.rank, own)
    if 0 not in known:
        return known, [0]
    if first_cause(known):
        return known, []
    return known, [rank for rank in range(cluster.world_size) if rank not in known] or [0]


def _cause(
    own: RankOutcome, cluster: Cluster, found: Mapping[int, RankOutcome], silent: Sequence[int]
) -> RankOutcome:
    """The first outcome that is a cause, else that of ranks without a report, else its own."""
    first = first_cause(found)
    if first and first.kind == "hung":
        where = [f"{cluster.name(rank)} does not answer" for rank in silent]
        where += [f"{cluster.name(other.rank)} was in {other.seen}" for other in found.values()]
        return replace(first, problem=f"{first.problem}: {', '.join(where[:MOST_RANKS])}")
    if first or not silent:
        return first or own
    names = ", ".join(map(cluster.name, silent[:MOST_RANKS]))
    seen = f" (NCCL reports on {cluster.name(own.rank)}: {own.seen})" if own.seen else ""
    return RankOutcome(
        silent[0],
        "failed",
        f"{names} exited without an error message{seen}",
        "see its log; it may have run out of memory or of batches",
    )


def first_cause(found: Mapping[int, RankOutcome]) -> RankOutcome | None:
    """The first outcome that is a cause."""
    return next((outcome for outcome in found.values() if outcome.kind in CAUSES), None)


def _actual_error(error: BaseException) -> BaseException:
    """The error that ends the session: not one that hides `Stopped`, and no ``sys.exit``."""
    error = errors.before_cleanup(error)
    if isinstance(error, Stopped):
        return error
    if stopped_at() < math.inf:
        return Stopped()
    if isinstance(error, SystemExit):
        return errors.UserError(
            f"sys.exit({error.code!r}) ended the run before it was complete, and nothing is saved",
            "raise an error there; to end training early and keep it, set "
            "trainer.should_stop = True",
        )
    return error


def _stopped() -> RankOutcome:
    return RankOutcome(_rank(), "stopped", f"{_name(_rank())} was stopped")


def _own_outcome(error: BaseException) -> RankOutcome:
    """This rank's outcome after an error, in one line.

    It names the rank, unless the error is about several, or a mistake in a single process.
    """
    if isinstance(error, Stopped):
        return _stopped()
    ranks, reason = _state.ranks, errors.nccl_reason(error)
    store = ranks.store if ranks else None
    user_error = errors.as_user_error(error)
    problem = ": ".join(filter(None, [errors.described(error), reason]))
    hint = ""
    if user_error:
        problem, hint = user_error.problem, user_error.hint
    is_shared = isinstance(error, ClusterError) or (user_error and not store)
    if ranks and not is_shared:
        problem = f"{_name(_rank())} failed: {problem}"
    is_lost = store is not None and lost_a_rank(error)
    return RankOutcome(_rank(), "lost" if is_lost else "failed", problem, hint, reason)


def lost_a_rank(error: BaseException) -> bool:
    """Whether a collective's other side is gone; gloo raises a plain RuntimeError then.

    NCCL's errors have many other causes: no memory, no network, a driver.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or errors.is_out_of_memory(error):
        return False
    kinds = [kind.__name__ for kind in type(error).__mro__]  # torch may not be imported
    if "DistBackendError" in kinds or "NCCL" in text:
        return bool(re.search(NCCL_LOST_A_RANK, text))
    return "DistError" in kinds or bool(re.search(f"gloo|{CONNECTION_ENDED}", text))


def _leave_broken_group(error: BaseException) -> None:
    """Leave the group after an error: gloo's end wakes the ranks that wait for this one.

    NCCL's is left as it is. To destroy a broken one may block for good (pytorch#141510), and its
    end aborts the other ranks before they have read the cause, which watch.py reports to them.
    """
    import torch.distributed

    if not torch.distributed.is_initialized():
        return
    if torch.distributed.get_backend() != "nccl":
        traceback.clear_frames(error.__traceback__)  # they hold the group
        thread = threading.Thread(target=torch.distributed.destroy_process_group, daemon=True)
        thread.start()
        thread.join(2)
    if torch.distributed.is_initialized():
        # Skip what native libraries do at the end of a process, which may block.
        atexit.register(_exit, 1)


# The main thread's location


def doing(activity: str) -> None:
    """Note what the main thread does, for a sentence about a hang."""
    _state.activity = activity


def main_thread_location() -> str:
    """The activity of the main thread, with the innermost line of the user's code, else of any."""
    frames = [frame for frame in _frames() if frame.f_code not in _state.outer]
    names = [frame.f_code.co_name for frame in frames]
    activity = next((PARTS[name] for name in names if name in PARTS), "") + _state.activity
    own = [frame for frame in frames if errors.is_users_file(frame.f_code.co_filename)]
    for frame in [*own, *frames][:1]:
        file = Path(frame.f_code.co_filename).name
        activity += f", {file}:{frame.f_lineno} {frame.f_code.co_name}"
    return activity


def _frames() -> list[FrameType]:
    """Frames of the main thread, the innermost first; none once Python ends."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    try:
        return [frame for frame, _ in traceback.walk_stack(innermost)] if innermost else []
    finally:
        del innermost  # it may be this one: the cycle would keep all that is on the stack


def _rank() -> int:
    return _state.ranks.cluster.rank if _state.ranks else 0


def _name(rank: int) -> str:
    return _state.ranks.cluster.name(rank) if _state.ranks else "this process"


def _print(line: str) -> None:
    """Print a line even while the main thread holds standard error."""
    os.write(2, f"{line}\n".encode())
