"""How a run ends: its status and the sentence for a mistake; and in order at SIGTERM and SIGINT, at any moment.

Nothing heavy is imported, so this comes first.

The handler only sets a flag where ranks work together (:func:`defer`): they agree on it between steps, write one
checkpoint and leave together (`checkpoints.py`). Elsewhere it raises :class:`Stopped` on the spot. A process that does
not get that far (it waits in native code, say) is ended by a thread; so is one that is told a second time.
"""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from runtime import report

STATUS = 128 + signal.SIGTERM
GRACE = 3.0  # seconds in which a process has to leave once nothing is left to save
SAME = 1.0  # seconds in which signals are one: a terminal and torchrun's agent both pass Ctrl-C on

_requested = ""  # name of the signal
_deferred = False
_deadline = float("inf")  # finite once this process leaves
_advice = "nothing was trained yet: start the same command again"


class Stopped(SystemExit):
    """Ends the process with status 143, as the shell reports a process that SIGTERM ended."""

    def __init__(self) -> None:
        global _deadline
        super().__init__(STATUS)
        _deadline = time.monotonic() + GRACE


def run(parse: Callable[[list[str]], dict[str, Any]], job: Callable[..., None]) -> int:
    """Do the job with the options of this command line, and say in one sentence what the user can mend.

    Returns:
        The status of the process: 0 when the job is done; 2 for a mistake on the command line; 1 for one that was
        found later; 143 when it was told to stop.
    """
    install()
    failed = 2
    try:
        options = parse(sys.argv[1:])
        failed = 1
        job(**options)
    except Exception as error:
        if not (sentence := report.sentence(error)):
            raise
        print(f"error: {sentence}", file=sys.stderr)
        report.write_failure(sentence)
        return STATUS if _requested else failed
    return complete()


def install() -> None:
    """Take SIGTERM and SIGINT; call it once, in the main thread, before anything slow."""
    # Python runs handlers between two instructions of the main thread; this socket is told even while that one waits.
    ours, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(ours,), name="stop", daemon=True).start()
    sys.excepthook = _hook
    atexit.register(_exit)
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=_forget)
    for number in (signal.SIGINT, signal.SIGTERM):  # last: from here one may come
        signal.signal(number, _handle)


def requested() -> bool:
    """Whether this process was told to stop."""
    return bool(_requested)


def name() -> str:
    """What told this process or another rank to stop."""
    return _requested or "a signal to another rank"


def leaving() -> bool:
    """Whether this process was told to stop and has begun to; a bare ``except:`` (fsspec's exists) may hide it."""
    return _deadline < float("inf")


def defer(advice: str) -> None:
    """From now on the flag is asked for (:func:`requested`); `advice` says how to go on, once this ends."""
    global _deferred, _advice
    _deferred, _advice = True, advice


def exit_on_signal() -> None:
    """From now on a signal ends this process on the spot; one that came before does so here."""
    global _deferred
    _deferred = False
    if _requested:
        _say()
        raise Stopped


def complete() -> int:
    """0, the status of a process that has done its work; from now on no signal changes that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)
    return 0


def ignore_signals_in_workers(*_: Any) -> None:
    """For loader workers: a signal to a whole process group is their parent's business, who may still need them."""

    def obey() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=obey, daemon=True).start()


def replace_lightning_signal_handlers(trainer: Any) -> None:
    """Replace Lightning's signals: a collective inside the handler, and a broadcast before every step (#21487).

    Raises:
        RuntimeError: this Lightning keeps them elsewhere; tests/test_stop.py says what to look at.
    """
    for owner, method in (
        (trainer._signal_connector, "register_signal_handlers"),
        (trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor"),
    ):
        if not callable(getattr(owner, method, None)):
            raise RuntimeError(
                f"Lightning changed: {type(owner).__name__} has no {method}; "
                "fix signals.replace_lightning_signal_handlers."
            )
        setattr(owner, method, lambda: None)


def _handle(number: int, _: Any) -> None:
    global _requested
    if not _requested:
        _requested = signal.Signals(number).name
        if not _deferred:
            _say()
            raise Stopped


def exit_without_cleanup() -> None:
    """This process has failed, and what native libraries do at its end may block: leave that out."""
    atexit.register(_exit, failed=True)


def _exit(failed: bool = False) -> None:
    """Python's own end would give the signals back to the system first, and a second SIGINT then make it status 130."""
    if leaving() or failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STATUS if leaving() else 1)


def _hook(*error: Any) -> None:
    """Where :class:`Stopped` was raised in the middle of an import, something else may arrive here."""
    if _requested and not _deferred:
        sys.stdout.flush()
        os._exit(STATUS)
    sys.__excepthook__(*error)


def _say() -> None:
    sys.stderr.flush()
    os.write(2, f"stopped by {_requested}; {_advice}\n".encode())


def _watch(told: socket.socket) -> None:
    """End the process where the main thread cannot: the deadline has passed, or a second signal came."""
    global _deadline
    first = 0.0
    told.settimeout(0.2)
    while True:
        try:
            number = told.recv(1)[0]
        except TimeoutError:
            number = 0
        now = time.monotonic()
        again = number in (signal.SIGTERM, signal.SIGINT) and first and now > first + SAME
        if number in (signal.SIGTERM, signal.SIGINT) and not first:
            first = now
            if not _deferred:
                _deadline = min(_deadline, now + GRACE)
        if again or now > _deadline:
            why = "a second signal" if again else f"{name()}, too slow to leave in order"
            os.write(2, f"ended by {why}; {_advice}\n".encode())
            os._exit(STATUS)


def _forget() -> None:
    """In a forked child: signals are its own again."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is _handle:
            # During training the children are loader workers, whoever made the loader: the main process ends them.
            signal.signal(number, signal.SIG_IGN if _deferred else signal.SIG_DFL)
