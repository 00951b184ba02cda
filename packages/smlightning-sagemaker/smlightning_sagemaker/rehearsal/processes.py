"""Finds and ends the processes of a rehearsal."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

# Signals that end the rehearsal. Windows has no SIGHUP.
END_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
PATIENCE = 3.0  # seconds between SIGTERM and SIGKILL, and after that


def of_run(run: Path, host: int | None = None) -> "list[psutil.Process]":
    """The processes of the rehearsal in folder ``run``, or of one host's index.

    Their environment marks them. Parents and sessions do not: torchrun's workers have sessions of
    their own, and the children of a killed process have no parent.
    """
    import psutil

    wanted = {"REHEARSAL_EVIDENCE": str(run / "evidence")}
    if host is not None:
        wanted["REHEARSAL_HOST"] = str(host)
    running = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if wanted.items() <= process.environ().items():
                running.append(process)
    return running


def send(receivers: "Iterable[psutil.Process]", number: signal.Signals) -> None:
    """Send a signal to the processes that still run."""
    import psutil

    for process in receivers:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def end_all(run: Path) -> None:
    """End every process of the rehearsal; a signal that comes meanwhile is handled afterwards."""
    received: list[int] = []
    handled = [each for each in END_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    handlers = {
        each: signal.signal(each, lambda number, _: received.append(number)) for each in handled
    }
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(of_run(run), number)
        deadline = time.monotonic() + PATIENCE
        while of_run(run) and time.monotonic() < deadline:
            time.sleep(0.05)
    for ended_by, handler in handlers.items():
        signal.signal(ended_by, handler)
    if received:
        signal.raise_signal(received[0])
