"""The last words of a process that native code aborts: NCCL's watchdog where another rank is lost,
a library that faults. Python runs no code then, and SageMaker's failure file would stay empty.

A helper process, forked before torch is imported, waits until this one ends. If Python's
faulthandler, which such a signal does reach, has written the stacks of all threads to the helper,
it prints them and, unless the work was done, leaves the cause in the failure file.
"""

import faulthandler
import mmap
import os
import signal
from typing import NoReturn

from smlightning import errors
from smlightning.cluster import memory_kills

SIZE = 500  # bytes for what a process is doing

_rank = "a process"
_doing: mmap.mmap | None = None  # shared with the helper; zeros once the work is done


def watch() -> None:
    """Start the helper; call it once, before anything slow and before a thread is started."""
    global _doing
    if not hasattr(os, "fork"):
        return
    _doing = mmap.mmap(-1, SIZE)
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
        """In a forked child, a loader's worker: the helper waits for its parent only."""
        faulthandler.disable()
        stream.close()

    os.register_at_fork(after_in_child=release)


def note(activity: str, rank: str = "") -> None:
    """Keep what this process is doing ("in backward of step 8"), and from now on which rank it is;
    costs a microsecond.
    """
    global _rank
    _rank = rank or _rank
    if _doing is not None:
        _doing[:] = f"{_rank} {activity}".encode()[:SIZE].ljust(SIZE, b"\0")


def no_more() -> None:
    """The work is done: from now on a crash leaves its stacks in the log, but no failure file."""
    if _doing is not None:
        _doing[:] = bytes(SIZE)


def _wait(reader: int, killed_before: int) -> NoReturn:
    """In the helper: wait until the process has ended, report why, and exit."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # launchers send them to all processes
    try:
        with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
            stacks = pipe.read()
        doing = bytes(_doing or b"").rstrip(b"\0").decode(errors="ignore")
        if stacks and doing:
            sentence = _sentence(stacks, doing, memory_kills.count() - killed_before)
            errors.write_failure(sentence)
            stacks += f"\nerror: {sentence}\n"
        os.write(2, stacks.encode())
    finally:
        os._exit(0)


def _sentence(stacks: str, doing: str, killed: int) -> str:
    """A sentence that says which signal ended the process, and what to do.

    Args:
        killed: processes that the kernel has killed here for lack of memory meanwhile.
    """
    problem = f"{_signal(stacks)} ended {doing}"
    if killed:
        count = f"{killed} process{'es' * (killed > 1)}"
        return f"{problem}, and the kernel killed {count} for lack of memory; {errors.MORE_MEMORY}"
    return (
        f"{problem}: native code found an error, as NCCL does where another rank is lost; "
        "see the logs of all ranks"
    )


def _signal(stacks: str) -> str:
    """The name of the signal by faulthandler's first line, e.g. Fatal Python error: Aborted."""
    said = stacks.splitlines()[0].rpartition(": ")[2]
    names = {signal.strsignal(number): number.name for number in signal.Signals}
    return names.get(said, said)
