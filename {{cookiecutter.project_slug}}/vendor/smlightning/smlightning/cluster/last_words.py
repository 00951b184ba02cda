"""Reports a process that native code aborts: NCCL's watchdog when another rank is lost, a library
that faults. Python runs no code then, and SageMaker's failure file would stay empty.

A helper process, forked before torch is imported, waits until this one ends. If faulthandler, which
such a signal does reach, has written the stacks of all threads to the helper, it prints them and,
unless the work was done, writes the cause to the failure file.
"""

import faulthandler
import mmap
import os
import signal
from typing import NoReturn

from smlightning import errors
from smlightning.cluster import memory_kills

SIZE = 500  # bytes for the activity

_rank = "a process"
_activity: mmap.mmap | None = None  # shared with the helper; zeros once the work is done


def watch() -> None:
    """Start the helper; call it once, before anything slow and before a thread is started."""
    global _activity
    if not hasattr(os, "fork"):
        return
    _activity = mmap.mmap(-1, SIZE)
    note("while it starts")
    killed_before = memory_kills.count()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        _wait(reader, killed_before)
    os.close(reader)
    stream = os.fdopen(writer, "wb", buffering=0)
    faulthandler.enable(stream)

    def release() -> None:
        """In a forked child, such as a loader's worker: the helper waits for its parent only."""
        faulthandler.disable()
        stream.close()

    os.register_at_fork(after_in_child=release)


def note(activity: str, rank: str = "") -> None:
    """Record this process's activity ("in backward of step 8") and, once known, its rank.

    It costs a microsecond.
    """
    global _rank
    _rank = rank or _rank
    if _activity is not None:
        _activity[:] = f"{_rank} {activity}".encode()[:SIZE].ljust(SIZE, b"\0")


def no_more() -> None:
    """The work is done: from now on a crash leaves its stacks in the log, but no failure file."""
    if _activity is not None:
        _activity[:] = bytes(SIZE)


def _wait(reader: int, killed_before: int) -> NoReturn:
    """In the helper: wait until the process has ended, report why, and exit."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # launchers send them to all processes
    try:
        with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
            stacks = pipe.read()
        activity = bytes(_activity or b"").rstrip(b"\0").decode(errors="ignore")
        if stacks and activity:
            sentence = _sentence(stacks, activity, memory_kills.count() - killed_before)
            errors.write_failure(sentence)
            stacks += f"\nerror: {sentence}\n"
        os.write(2, stacks.encode())
    finally:
        os._exit(0)


def _sentence(stacks: str, activity: str, killed: int) -> str:
    """Which signal ended the process, and what to do.

    Args:
        stacks: faulthandler's text, e.g. "Fatal Python error: Aborted" and the stacks.
        killed: processes that the kernel killed here for lack of memory meanwhile.
    """
    name = stacks.splitlines()[0].rpartition(": ")[2]
    names = {signal.strsignal(number): number.name for number in signal.Signals}
    problem = f"{names.get(name, name)} ended {activity}"
    if killed:
        processes = memory_kills.processes(killed)
        return (
            f"{problem}, and the kernel killed {processes} for lack of memory; {errors.MORE_MEMORY}"
        )
    return f"{problem}: native code found an error, or NCCL lost another rank; see all ranks' logs"
