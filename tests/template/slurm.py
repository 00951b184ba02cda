"""A real Slurm cluster of two hosts on this machine: slurmctld, and a slurmd for each host."""

import contextlib
import getpass
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from projects import wait_until
from smlightning_sagemaker.testing.processes import free_port

HOSTS = ("127.0.0.2", "127.0.0.3")  # names that resolve on any machine
# A requeued job waits for as long as a job's credentials last, which is two minutes by default:
# https://slurm.schedmd.com/slurm.conf.html#OPT_cred_expire
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=60
MessageTimeout=100
BatchStartTimeout=100
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
NodeName={hosts[0]} Port={first} CPUs=2 Gres=gpu:2
NodeName={hosts[1]} Port={second} CPUs=2 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
"""
GPUS = "Name=gpu File=/dev/null,/dev/zero"  # two devices: Slurm only counts them


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the cluster, and end it; yields the variables with which Slurm's commands find it."""
    (folder / "state").mkdir(parents=True)
    ports = {name: free_port() for name in ("control", "first", "second")}
    text = CONFIGURATION.format(folder=folder, hosts=HOSTS, user=getpass.getuser(), **ports)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    (folder / "gres.conf").write_text(GPUS, encoding="utf-8")
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    version = output(variables, "slurmd", "-V").split()[-1]
    if version >= "23":  # older ones have no such value, and need neither systemd nor root
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n", encoding="utf-8")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        for command in (["slurmctld"], *(["slurmd", "-N", host] for host in HOSTS)):
            daemon = subprocess.Popen(
                [*command, "-D"], env=os.environ | variables, stdout=log, stderr=log
            )
            stack.callback(daemon.wait, 60)
            stack.callback(daemon.terminate)
        wait_until(lambda: "idle 2" in output(variables, "sinfo", "-h", "-o", "%T %D"))
        yield variables


def output(variables: dict[str, str], *command: str) -> str:
    """Run a command of Slurm, and return its output, or its error output if it fails."""
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    return ended.stderr if ended.returncode else ended.stdout
