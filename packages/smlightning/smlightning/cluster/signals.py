"""Stops a run in order after a signal.

SIGTERM, Ctrl-C, and SIGUSR1, which many Slurm scripts have sent before the time limit, stop a run.

It imports no heavy module, so a run can be stopped from its first moment on.

While ranks work together (:func:`defer`) the handler only records the signal: they agree on it
between steps, write one checkpoint and leave together. Otherwise it raises ``ending.Stopped`` at
once. watch.py ends a process that waits in native code, and one that gets a second signal.
"""

import atexit
import faulthandler
import math
import os
import signal
import sys
import threading
from typing import Any

from smlightning.cluster import ending, watch

_state = watch.state


def install() -> None:
    """Handle ``watch.SIGNALS``; call it once, in the main thread, before anything slow."""
    faulthandler.enable(sys.__stderr__ or 2)  # stacks if native code aborts the process
    # Python runs handlers between two instructions of the main thread. The descriptor is written to
    # even while that thread waits in native code.
    signal.set_wakeup_fd(watch.start(os.getpid()), warn_on_full_buffer=False)
    atexit.register(ending.exit_if_stopped)
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=_release_signals)
    for number in watch.SIGNALS:  # last: from here on one may come
        signal.signal(number, _handle)


def requested() -> bool:
    """Whether this process got a signal."""
    return bool(_state.requested)


def name() -> str:
    """The signal that stops this process."""
    return _state.requested or "a signal to another rank"


def defer(advice: str) -> None:
    """From now on the ranks check :func:`requested` between steps.

    Args:
        advice: printed when a signal ends this process.
    """
    _state.grace, _state.advice = math.inf, advice


def exit_on_signal() -> None:
    """From now on a signal ends this process at once; one that came before does so here."""
    _state.grace = watch.GRACE
    if _state.requested:
        _print_stopped()
        raise ending.Stopped


def complete() -> int:
    """Returns 0, the status of a process whose work is done; no later signal changes it."""
    for number in watch.SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)
    return 0


def ignore_signals_in_workers(*_: Any) -> None:
    """For loader workers (``worker_init_fn``): only their parent ends them.

    The parent may still need them to save after a signal to the whole process group.
    """
    from multiprocessing import parent_process

    parent = parent_process()  # not os.getppid(), which may be a server that forks workers
    assert parent and parent.pid
    _obey_only(parent.pid)


def _obey_only(parent: int) -> None:
    """Ignore signals, except for SIGTERM of this process."""
    for number in watch.SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS and Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_after_signal_of, args=(parent,), daemon=True).start()


def _exit_after_signal_of(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
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
        setattr(owner, method, lambda: None)


def _handle(number: int, _: Any) -> None:
    if _state.requested:
        return
    _state.requested = signal.Signals(number).name
    if _state.grace < math.inf:  # else the ranks agree between steps
        _print_stopped()
        raise ending.Stopped


def _print_stopped() -> None:
    sys.stderr.flush()
    os.write(2, f"stopped by {_state.requested}; {_state.advice}\n".encode())


def _release_signals() -> None:
    """Remove the parent's socket and handlers in a forked child.

    During training the children are loader workers, which only their parent ends.
    """
    signal.set_wakeup_fd(-1)
    for number in watch.SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_DFL)
    if _state.grace == math.inf:  # during training
        _obey_only(os.getppid())
