"""Training under a real Slurm, of two hosts on this machine, with the job script of the documents."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm
from projects import Project, bake, need, weights

OPTIONS = ["--epochs", "4", "--lr", "0.01", "--batch_size", "8", "--log_every", "1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    need("slurmctld", "slurmd", "srun")
    with slurm.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as variables:
        yield variables


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return bake(tmp_path_factory.mktemp("project"))


def job_script(project: Project) -> str:
    """The script of docs/slurm.md."""
    found = re.search(r"```bash\n(#!.*?)```", project.read("docs/slurm.md"), re.DOTALL)
    assert found
    return found[1]


@pytest.mark.long
def test_srun_trains_to_torchruns_weights_and_resumes_after_a_stop(
    cluster: dict[str, str], project: Project, words: Path, tmp_path: Path
) -> None:
    command = ["python", "src/train.py", "--dataset", str(words), *OPTIONS, "--output_dir"]
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4"]
    project.run(*torchrun, *command[1:], "by_torchrun")
    srun = ["srun", "--nodes=2", "--ntasks-per-node=2"]
    started = project.run(*srun, *command, "by_srun", **cluster)
    assert "launcher: srun" in started.stdout
    assert len(re.findall(r"^prepare_data:", started.stdout, re.MULTILINE)) == 2  # one on each host
    assert weights(project.path / "by_srun") == weights(project.path / "by_torchrun")

    script = re.sub(r"^#SBATCH --(gpus|cpus)\S*\n", "", job_script(project), flags=re.MULTILINE)
    script = script.replace("--ntasks-per-node=8", "--ntasks-per-node=2")
    line = " ".join([sys.executable, *command[1:], "by_sbatch"])
    script = script.replace(".venv/bin/python src/train.py", line)
    (project.path / "job.sh").write_text(script, encoding="utf-8")
    number = project.run("sbatch", "--parsable", "job.sh", **cluster).stdout.strip()
    log = project.path / f"slurm-{number}.out"

    def has(words: str) -> bool:
        return log.is_file() and words in log.read_text(encoding="utf-8")

    slurm.wait_until(lambda: has("step=5 "), 180)
    project.run("scancel", "--signal=TERM", number, **cluster)
    slurm.wait_until(lambda: has("stopped by SIGTERM"), 60)
    slurm.wait_until(lambda: has("resume: from"), 300)
    slurm.wait_until(lambda: has("test/accuracy"), 180)
    assert weights(project.path / "by_sbatch") == weights(project.path / "by_srun")
