"""Stops or kills a host in the middle of training, and keeps its checkpoints as S3 does.

stubs/rehearsal_process.py carries out the other faults: an error, and a killed rank.
"""

import contextlib
import shutil
import signal
import zipfile
from collections.abc import Sequence
from pathlib import Path

from smlightning_sagemaker.rehearsal import processes
from smlightning_sagemaker.rehearsal.hosts import Host
from smlightning_sagemaker.rehearsal.plan import LOSE_HOST, STOP_HOST, Fault

COMPLETE = "[!.]*.ckpt"  # a checkpoint of this package and of Lightning
ARCHIVE = b"PK\x03\x04"  # the beginning of what torch.save writes; its directory comes last


def may_interrupt(fault: Fault, run: Path, hosts: Sequence[Host]) -> bool:
    """Whether the host is in training and, if it will be lost, there is a checkpoint."""
    if not (run / "evidence" / f"in-training-{fault.target}").exists():
        return False
    if fault.kind == STOP_HOST:
        return True
    folders = [host.base / "checkpoints" for host in hosts]
    found = [path for folder in folders for path in folder.rglob(COMPLETE)]
    return bool(found) and all(is_whole(path) for path in found)


def is_whole(path: Path) -> bool:
    """Whether all of a checkpoint's file or folder is written, as far as its format shows it."""
    if path.is_dir():  # sharded weights of Lightning or DeepSpeed
        return all(is_whole(each) for each in path.rglob("*") if each.is_file())
    if zipfile.is_zipfile(path):
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(ARCHIVE)) not in (b"", ARCHIVE)
    return False


def interrupt(fault: Fault, run: Path, hosts: Sequence[Host]) -> bool:
    """Kill the host's processes, or send SIGTERM to its entry point as SageMaker does.

    Returns False if it has to wait: a script may have begun to write its next checkpoint over the
    last one while the host's processes were looked for.

    The entry point looks for the script in /proc, which the hosts share: here it looks in
    ``processes/``, which links to the processes of this host.
    """
    host = hosts[fault.target]
    running = processes.of_run(run, host.index)
    if fault.kind == LOSE_HOST:
        if not may_interrupt(fault, run, hosts):
            return False
        processes.send(running, signal.SIGKILL)
        return True
    folder = host.base / "processes"
    folder.mkdir()
    for process in running:
        (folder / str(process.pid)).symlink_to(f"/proc/{process.pid}")
    entry = [process for process in running if process.info["cmdline"] == host.command]
    processes.send(entry, signal.SIGTERM)
    return True


def upload_checkpoints(hosts: Sequence[Host], into: Path) -> Path:
    """Copy the checkpoints of every host into one folder, as to S3.

    If two hosts have a file with the same name, the first host's stays.
    """
    for host in reversed(hosts):
        shutil.copytree(host.base / "checkpoints", into, dirs_exist_ok=True)
    return into
