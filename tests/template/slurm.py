"""A real Slurm cluster of two hosts on this machine: slurmctld, and a slurmd for each host."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from smlightning.testing.processes import free_port

# Both names resolve on any machine; Slurm takes each slurmd for a host of its own.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName={host} NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=2
NodeName=localhost NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=2
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the cluster, and end it; yields the variables with which Slurm's commands find it."""
    (folder / "state").mkdir(parents=True)
    host, user = socket.gethostname(), os.environ.get("USER") or "root"
    ports = {name: free_port() for name in ("control", "first", "second")}
    text = CONFIGURATION.format(folder=folder, host=host, user=user, **ports)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    commands = [
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", name] for name in (host, "localhost")),
    ]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        for command in commands:
            daemon = subprocess.Popen(
                command, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(daemon.wait, 60)
            stack.callback(daemon.terminate)
        wait_until(lambda: said(variables, "sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"])
        yield variables


def said(variables: dict[str, str], *command: str) -> str:
    """What a command of Slurm prints."""
    ended = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    return ended.stdout.strip()


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "this took too long"
        time.sleep(0.2)
