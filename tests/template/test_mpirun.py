"""SageMaker's mpirun runner on two real hosts: network namespaces, each with an sshd."""

import shutil
import sys
from pathlib import Path

import pytest

import two_hosts
from projects import Project, need
from smlightning_sagemaker import project as projects
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.rehearsal import checks
from smlightning_sagemaker.rehearsal.environment import container_environment
from smlightning_sagemaker.rehearsal.evidence import Attempt, read_ranks
from smlightning_sagemaker.rehearsal.hosts import Host, create_hosts
from smlightning_sagemaker.rehearsal.plan import Plan

TOOLKIT = [sys.executable, "-m", "sagemaker_training.cli.train"]


def two_host_plan(project: Project, processes: int, words: Path) -> Plan:
    job = Job(
        name="two-hosts",
        region="us-east-1",
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        distribution="smddp",
        hyperparameters={"epochs": 1, "dataset": str(words), "log_every": 10},
    )
    body = request.dry_run(job, projects.Project(project.path))
    source = project.path / "src"
    return Plan(2, processes, "smddp", source, body, timeout=300, real_mpirun=True)


def name_hosts(hosts: list[Host], names: list[str]) -> None:
    """Replace loopback addresses in the hosts' configuration by names."""
    for host in hosts:
        config = host.base / "input/config/resourceconfig.json"
        text = config.read_text().replace('"lo"', '"eth0"')
        for other, name in zip(hosts, names, strict=True):
            text = text.replace(other.address, name)
        config.write_text(text)


def variables(plan: Plan, run: Path, host: Host, name: str) -> dict[str, str]:
    """The variables of a host, and those with which two_hosts.py builds it."""
    return {
        **container_environment(plan, run, host),
        "GLOO_SOCKET_IFNAME": "eth0",
        "NAME": name,
        "BASE": str(host.base),
    }


@pytest.mark.long
def test_two_hosts_under_real_mpirun(project: Project, words: Path, tmp_path: Path) -> None:
    """Every check passes with ranks on two hosts, each with its own sshd and /opt/ml."""
    need("/usr/sbin/sshd", "ip", "unshare", root=True)
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o755)
    processes = 2
    plan = two_host_plan(project, processes, words)
    hosts = create_hosts(plan, run)
    names = [f"algo-{host.number}" for host in hosts]
    name_hosts(hosts, names)
    environments = [
        variables(plan, run, host, name) for host, name in zip(hosts, names, strict=True)
    ]
    codes = two_hosts.run(run, environments, TOOLKIT)
    logs = "\n".join((run / f"log-{i}").read_text() for i in range(2))
    for host, name, code in zip(hosts, names, codes, strict=True):
        host.exit_code, host.address = code, name
    ranks = read_ranks(run)
    verdicts = checks.judge(plan, Attempt(run, hosts, ranks))
    assert all(check.verdict == "passed" for check in verdicts), f"{verdicts}\n{logs[-6000:]}"
    command = logs.split("mpirun --host ", 1)[1].split("\n", 1)[0]
    assert f"{names[0]}:{processes},{names[1]}:{processes}" in command and "smddprun" in command
    assert "\x1b" not in logs  # a progress bar, on the terminal that mpirun gives each rank
    # The toolkit writes each host's variables to its own /etc/environment.
    of_ranks = [name for name in names for _ in range(processes)]
    assert [rank.current_host for rank in ranks] == of_ranks
    shutil.rmtree(run)
