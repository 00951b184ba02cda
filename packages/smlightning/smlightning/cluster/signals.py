"""Ends a process: with its status, one sentence for a mistake, and in order after a signal.

SIGTERM, Ctrl-C, and SIGUSR1, which many Slurm scripts have sent before the time limit, stop a run.

Nothing heavy is imported, so a run can be stopped from its first moment on.

While ranks work together (:func:`defer`) the handler only records the signal: they agree on it
between steps, write one checkpoint and leave together. Otherwise it raises :class:`Stopped` at
once. A thread ends a process that waits in native code, and one that gets a second signal.
"""

import atexit
import contextlib
import faulthandler
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from smlightning import errors

STATUS = 128 + signal.SIGTERM
GRACE = 3.0  # seconds in which a process has to leave once nothing is left to save
SAME = 1.0  # seconds in which signals are one: a terminal and torchrun's agent both pass Ctrl-C on
SIGNALS = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGUSR1"):  # Windows has none
    SIGNALS.append(signal.SIGUSR1)


@dataclass
class _State:
    """The signal that this process got, and how it reacts."""

    requested: str = ""  # name of the signal
    deferred: bool = False  # whether the ranks check `requested` between steps
    deadline: float = math.inf  # time.monotonic() at which a thread ends the process
    advice: str = "nothing was trained yet: start the same command again"


_state = _State()


class Stopped(SystemExit):
    """Ends the process with status 143, as the shell reports one that SIGTERM ended."""

    def __init__(self) -> None:
        super().__init__(STATUS)
        _state.deadline = time.monotonic() + GRACE


def run(job: Callable[[], None]) -> int:
    """Run ``job``; print a mistake of the user as a sentence.

    Returns:
        The status of the process: 0 when the job is done; 1 for a mistake; 143 after a signal.
    """
    try:
        job()
    except Stopped:
        raise
    except SystemExit as error:
        return report(left_early(error), 1)
    except Exception as error:
        return report(error, 1)
    return complete()


def left_early(error: SystemExit) -> errors.UserError:
    """The error for code that calls ``sys.exit`` before the job is done."""
    return errors.UserError(
        f"sys.exit({error.code!r}) ended the run before it was complete, and nothing is saved",
        "raise an error there; to end training early and keep it, set trainer.should_stop = True",
    )


def report(error: Exception, status: int) -> int:
    """Print a mistake of the user and return the process's status; raises any other error."""
    ignore_ended_workers()
    user_error = errors.as_user_error(error)
    if user_error is None:
        raise error
    _print_user_error(user_error, error)
    return STATUS if _state.requested else status


def _print_user_error(user_error: errors.UserError, error: BaseException) -> None:
    """Print the sentence for an error, and write it to SageMaker's failure file."""
    if isinstance(error, BrokenPipeError):
        errors.discard_stdout()
    print(f"error: {user_error}", file=sys.stderr)
    errors.write_failure(str(user_error))


def install() -> None:
    """Handle SIGNALS; call it once, in the main thread, before anything slow."""
    faulthandler.enable(sys.__stderr__ or 2)  # stacks if native code aborts the process
    # Python runs handlers between two instructions of the main thread. The socket is written to
    # even while that thread waits in native code.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="stop", daemon=True).start()
    sys.excepthook = _print_exception
    atexit.register(_exit_if_leaving)
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=_release_signals)
    for number in SIGNALS:  # last: from here on one may come
        signal.signal(number, _handle)


def requested() -> bool:
    """Whether this process got a signal."""
    return bool(_state.requested)


def name() -> str:
    """The signal that stops this process."""
    return _state.requested or "a signal to another rank"


def leaving() -> bool:
    """Whether this process has begun to stop.

    A bare ``except:``, as in fsspec's ``exists``, may have swallowed :class:`Stopped`.
    """
    return _state.deadline < math.inf


def defer(advice: str) -> None:
    """From now on the ranks check :func:`requested` between steps.

    Args:
        advice: printed when a signal ends this process.
    """
    _state.deferred = True
    _state.advice = advice


def exit_on_signal() -> None:
    """From now on a signal ends this process at once; one that came before does so here."""
    _state.deferred = False
    if _state.requested:
        _print_stopped()
        raise Stopped


def complete() -> int:
    """Returns 0, the status of a process whose work is done; no later signal changes it."""
    for number in SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)
    return 0


def exit_without_cleanup() -> None:
    """After a failure: skip what native libraries do at the end of a process, which may block."""
    atexit.register(_exit, 1)


def ignore_ended_workers() -> None:
    """After an error: torch's handler of SIGCHLD no longer raises another one.

    Workers of one loader often die together, and the second may die while the error of the first
    is reported.
    """
    with contextlib.suppress(AttributeError, ValueError):  # Windows; not the main thread
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ignore_signals_in_workers(*_: Any) -> None:
    """For loader workers (``worker_init_fn``): only their parent ends them.

    The parent may still need them to save after a signal to the whole process group.
    """
    for number in SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_when_parent_says, daemon=True).start()


def _exit_when_parent_says() -> None:
    from multiprocessing import parent_process

    parent = parent_process()  # not os.getppid(), which may be a server that forks workers
    assert parent
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def replace_lightning_signal_handlers(trainer: Any) -> None:
    """Turn Lightning's own signal handling off (Lightning#21487).

    It runs a collective inside the handler, and a broadcast before every step.

    Raises:
        RuntimeError: this version of Lightning keeps them elsewhere.
    """
    methods = (
        (trainer._signal_connector, "register_signal_handlers"),
        (trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor"),
    )
    for owner, method in methods:
        if not callable(getattr(owner, method, None)):
            raise RuntimeError(
                f"Lightning changed: {type(owner).__name__} has no {method}; "
                "correct signals.replace_lightning_signal_handlers"
            )
        setattr(owner, method, _do_nothing)


def _do_nothing() -> None:
    pass


def _handle(number: int, _: Any) -> None:
    if _state.requested:
        return
    _state.requested = signal.Signals(number).name
    if not _state.deferred:
        _print_stopped()
        raise Stopped


def _exit_if_leaving() -> None:
    """Exit with 143 before Python restores the system's handlers: SIGINT would make it 130."""
    if leaving():
        _exit(STATUS)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STATUS if leaving() else status)


def _print_exception(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """For ``sys.excepthook``: errors of imports, and those that are no mistake of the user.

    An import that Stopped interrupts may raise any error.
    """
    if _state.requested and not _state.deferred:
        _exit(STATUS)
    user_error = errors.as_user_error(error)
    if user_error:
        _print_user_error(user_error, error)
        return
    errors.write_failure(errors.described(error))  # an earlier text stays
    print(f"error: {errors.described(error)}; its stack trace follows", file=sys.stderr)
    sys.__excepthook__(kind, error, traceback)


def _print_stopped() -> None:
    sys.stderr.flush()
    os.write(2, f"stopped by {_state.requested}; {_state.advice}\n".encode())


def _watch(reader: socket.socket) -> None:
    """End the process if its time to stop is over or a second signal came."""
    first_signal = 0.0
    reader.settimeout(0.2)
    while True:
        try:
            number = reader.recv(1)[0]
        except TimeoutError:
            number = 0
        now = time.monotonic()
        is_second = False
        if number in SIGNALS and first_signal:
            is_second = now > first_signal + SAME
        elif number in SIGNALS:
            first_signal = now
            if not _state.deferred:
                _state.deadline = min(_state.deadline, now + GRACE)
        if is_second or now > _state.deadline:
            reason = "a second signal" if is_second else f"{name()}: the run did not stop in time"
            os.write(2, f"ended by {reason}; {_state.advice}\n".encode())
            os._exit(STATUS)


def _release_signals() -> None:
    """Remove the parent's socket and handlers in a forked child.

    During training the children are loader workers, which their parent ends.
    """
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN if _state.deferred else signal.SIG_DFL)
