"""Training in a real Slurm of two hosts on this machine, with examples/cluster/job.sh."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm
from projects import TEMPLATE, Project, bake, need, wait_until, weights
from smlightning.cluster.slurm import host_names

OPTIONS = ["--epochs", "12", "--lr", "0.01", "--batch_size", "8", "--log_every", "1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    need("slurmctld", "slurmd", "srun")
    with slurm.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as variables:
        yield variables


@pytest.fixture(scope="module")
def command(words: Path) -> list[str]:
    return ["python", "src/train.py", "--dataset", str(words), *OPTIONS, "--output_dir"]


@pytest.fixture(scope="module")
def by_srun(
    cluster: dict[str, str], command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, str]:
    """A project that srun trained on two hosts with two ranks each, and what it printed."""
    project = bake(tmp_path_factory.mktemp("project"))
    srun = ["srun", "--nodes=2", "--ntasks-per-node=2"]
    return project, project.run(*srun, *command, "by_srun", **cluster).stdout


@pytest.mark.long
def test_two_hosts_train_to_the_weights_of_torchrun(
    by_srun: tuple[Project, str], command: list[str]
) -> None:
    project, printed = by_srun
    assert "launcher: srun" in printed and "warning" not in printed
    for rank in range(4):
        assert re.search(rf"^{slurm.HOSTS[rank // 2]} .* {rank}/4 +{rank % 2}/2 ", printed, re.M)
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4"]
    project.run(*torchrun, *command[1:], "by_torchrun")
    assert weights(project.path / "by_srun") == weights(project.path / "by_torchrun")


@pytest.mark.long
def test_without_srun_a_job_warns_that_one_process_trains(
    by_srun: tuple[Project, str], cluster: dict[str, str], command: list[str]
) -> None:
    project, _ = by_srun
    script = " ".join([sys.executable, *command[1:], "alone", "--max_steps", "1"])
    wrap = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=2", "--output=alone.log"]
    project.run(*wrap, f"--wrap={script}", **cluster)
    assert re.search("warning: .*SLURM_NTASKS is 4 .* one process", project.read("alone.log"))


def test_host_names_equal_those_of_scontrol(cluster: dict[str, str]) -> None:
    for text in ("n[01-03,7]", "a[8-11],b,c[1,3-4]", "r[1-2]n[0-1]", "ip-10-1-2-3,ip-10-1-2-4"):
        names = slurm.output(cluster, "scontrol", "show", "hostnames", text)
        assert host_names(text) == names.split()


def job_script(command: str) -> str:
    """The script for hosts with two GPUs, with another command."""
    text = (TEMPLATE / "examples/cluster/job.sh").read_text(encoding="utf-8")
    text = text.replace("-node=4", "-node=2").replace("cpus-per-task=6", "cpus-per-task=1")
    assert ".venv/bin/python src/train.py" in text
    return text.replace(".venv/bin/python src/train.py", command)


@pytest.mark.long
def test_a_job_stopped_by_slurm_is_requeued_and_resumes_exactly(
    by_srun: tuple[Project, str], cluster: dict[str, str], command: list[str]
) -> None:
    project, _ = by_srun
    train = " ".join([sys.executable, *command[1:], "stopped"])
    (project.path / "job.sh").write_text(job_script(train), encoding="utf-8")
    number = project.run("sbatch", "--parsable", "job.sh", **cluster).stdout.strip()
    log = project.path / f"slurm-{number}.out"

    def has(text: str) -> bool:
        return log.is_file() and text in log.read_text(encoding="utf-8")

    wait_until(lambda: has("step=5 "))
    project.run("scancel", "--signal=TERM", number, **cluster)  # as --signal does
    wait_until(lambda: "PENDING" in slurm.output(cluster, "squeue", "-h", "-o%T"))
    assert has("stopped by SIGTERM")
    wait_until(lambda: has("\ntest/accuracy "))
    assert has("resume: from")
    wait_until(lambda: not slurm.output(cluster, "squeue", "-h"))
    assert weights(project.path / "stopped") == weights(project.path / "by_srun")
