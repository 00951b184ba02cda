"""A host that is stopped or lost in the middle of training, and what S3 keeps of it.

The other faults, an error and a killed rank, are carried out by stubs/rehearsal_recorder.py.
"""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from smlightning.rehearsal import processes
from smlightning.rehearsal.hosts import Host
from smlightning.rehearsal.plan import LOSE_HOST, STOP_HOST, Fault


def may_interrupt(fault: Fault, run: Path, hosts: Sequence[Host]) -> bool:
    """Whether the host is in training; if it is to be lost, also whether there is a checkpoint."""
    if not (run / "evidence" / f"in-training-{fault.target}").exists():
        return False
    if fault.kind == STOP_HOST:
        return True
    return any(path for host in hosts for path in (host.base / "checkpoints").glob("[!.]*"))


def interrupt(fault: Fault, run: Path, host: Host) -> None:
    """Kill all that runs on the host, or send SIGTERM to its entry point as SageMaker does.

    The entry point looks for the script in /proc, which hosts of one machine share: it is shown
    ``processes/`` with links to the host's own instead.
    """
    running = processes.of_run(run, host.index)
    if fault.kind == LOSE_HOST:
        processes.send(running, signal.SIGKILL)
        return
    folder = host.base / "processes"
    folder.mkdir()
    for process in running:
        (folder / str(process.pid)).symlink_to(f"/proc/{process.pid}")
    entry = [process for process in running if process.info["cmdline"] == host.command]
    processes.send(entry, signal.SIGTERM)


def upload_checkpoints(hosts: Sequence[Host], into: Path) -> Path:
    """What S3 holds after an attempt: the checkpoints of every host, in one folder.

    Of two files with one name the first host's stays.
    """
    for host in reversed(hosts):
        shutil.copytree(host.base / "checkpoints", into, dirs_exist_ok=True)
    return into
