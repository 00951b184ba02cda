"""SageMaker's mpirun runner on two real hosts: network namespaces, an sshd on each, Open MPI between them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import two_hosts
from conftest import Project, need


@pytest.mark.parametrize(("distribution", "processes"), [("smddp", 1), ("pytorchddp", 2)])
def test_two_hosts_under_real_mpirun(
    distribution: str,
    processes: int,
    project: Project,
    words: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every check of the rehearsal passes where ranks cross hosts, each with its own sshd, /opt/ml and environment."""
    need("/usr/sbin/sshd", "ip", "unshare", root=True)
    monkeypatch.syspath_prepend(str(project.path))
    from launch import request
    from launch.job import Job
    from rehearsal import checks, hosts

    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o755)
    options = {"epochs": 1, "dataset": str(words), "log_every": 10}
    asked = Job("two-hosts", "us-east-1", "ml.p4d.24xlarge", 2, distribution=distribution, hyperparameters=options)
    plan = hosts.Plan(2, processes, distribution, project.path / "src", request.dry_run(asked), timeout=300)
    created = hosts.create_hosts(plan, run)
    started = []
    names = [f"algo-{i + 1}-{run.stat().st_ino}" for i in range(2)]
    for i, host in enumerate(created):
        config = host.base / "input/config/resourceconfig.json"
        text = config.read_text().replace('"lo"', '"eth0"')
        for other, name in zip(created, names, strict=True):
            text = text.replace(other.address, name)
        config.write_text(text)
        environment = hosts.environment(plan, run, host, 7777, mpirun=True) | {"GLOO_SOCKET_IFNAME": "eth0"}
        environment |= {"NAME": names[i], "ADDRESS": f"10.77.0.{i + 1}", "BASE": str(host.base), "RUN": str(run)}
        started.append({"environment": environment | {"PYTHON": sys.executable}})
    (run / "plan.json").write_text(json.dumps(started))
    two_hosts.prepare(run, [(name, f"10.77.0.{i + 1}", created[i].base) for i, name in enumerate(names)])
    try:
        subprocess.run([sys.executable, two_hosts.__file__, str(run)], timeout=400)
    finally:
        for name in names:
            Path("/tmp", f"done.{name}").unlink(missing_ok=True)  # noqa: S108  the leader's word to the workers
    logs = "\n".join((run / f"log-{i}").read_text() for i in range(2))
    for host, code in zip(created, json.loads((run / "codes.json").read_text()), strict=True):
        host.exit_code = code
    ranks = checks.evidence(run)
    verdicts = checks.judge(plan, run, created, ranks)
    assert all(check.verdict == "passed" for check in verdicts), f"{verdicts}\n{logs[-6000:]}"
    assert "mpirun --host " in logs and f"{names[0]}:{processes},{names[1]}:{processes}" in logs
    assert ("smddprun" in logs.split("mpirun --host ", 1)[1].split("\n", 1)[0]) == (distribution == "smddp")
    # The toolkit writes each host's variables to its /etc/environment, so even here SM_CURRENT_HOST is the host's own.
    assert [rank["current_host"] for rank in ranks] == [name for name in names for _ in range(processes)]
    shutil.rmtree(run)
