"""HyperPod's agent on two hosts of this machine: one is lost, and another takes its place.

AWS's package hyperpod-elastic-agent runs; a stand-in (hyperpod.py) takes the place of its operator.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperpod import JobFailed, Operator
from projects import Project, bake, wait_until
from smlightning.checkpoints import files
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.images import Profile
from smlightning_sagemaker.rehearsal import image

AGENT = "hyperpod-elastic-agent==1.1.3"
PINNED = [AGENT, "fastapi==0.165.0", "starlette==1.10.0", "uvicorn==0.54.0"]
# As in a manifest.
OPTIONS = [
    "--nnodes=2",
    "--nproc-per-node=2",
    "--shutdown-signal=SIGTERM",
    "--shutdown-timeout=100",
]
BY_SCRIPT = ["--no-python", "sh", "train.sh"]  # of docs/kubernetes.md


def install_agent(profile: Profile, agent: list[str], project: Project, folder: Path) -> Path:
    """hyperpodrun, in an environment with the packages of an image whose torch it takes."""
    packages = image.image_python(profile, project.path)
    image.run([str(packages), "-m", "venv", "--without-pip", str(folder)], folder.parent)
    [theirs] = packages.parents[1].glob("lib/python*/site-packages")
    [own] = folder.glob("lib/python*/site-packages")
    (own / "image.pth").write_text(str(theirs))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    image.run([*pip, "install", "--quiet", *agent], folder)
    return folder / "bin" / "hyperpodrun"


@contextlib.contextmanager
def operator(
    program: Path, start: list[str], project: Project, words: Path, folder: Path
) -> Iterator[Operator]:
    """An operator whose job trains 60 steps, each on 16 samples, and saves them in ``folder``."""
    values = {"dataset": words, "batch_size": 4, "epochs": 4, "log_every": 1}
    values |= {"checkpoint_steps": 5, "data_dir": folder / "prepared", "output_dir": folder}
    options = [f"--{name}={value}" for name, value in values.items()]
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    variables = project.environment(
        NNODES="2", FULL_WORLD_SIZE="4", PATH=path, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1"
    )
    command = [program, *OPTIONS, *start, *options]
    job = Operator(command, project.path / "src", variables, folder / "pods")
    try:
        yield job
    finally:
        job.delete()


def largest_gap(one: Path, other: Path) -> float:
    """The largest difference between the last weights of two runs."""
    states = []
    for folder in (one, other):
        path = files.newest(folder / "checkpoints")
        assert path and "-step000060-" in path.name
        states.append(files.read(path)["state_dict"])
    return max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0])


@pytest.mark.newest  # it takes minutes
@pytest.mark.timeout(1800)  # pip may have to install the image's packages
@pytest.mark.parametrize(
    ("profile", "agent"),
    [
        # .ci/run uses this environment for the image, too.
        pytest.param(images.SMDDP, PINNED, id="torch-2.5"),
        # The image that docs/kubernetes.md recommends.
        pytest.param(images.MPIRUN, [AGENT], id="torch-2.10"),
    ],
)
def test_a_lost_host_comes_back_and_the_weights_are_those_of_an_undisturbed_run(
    profile: Profile, agent: list[str], words: Path, tmp_path: Path
) -> None:
    """On 2 hosts with 2 ranks each, on 1 × 2, and on 2 × 2 again, with the same global batch."""
    project = bake(tmp_path)
    model = project.read("src/model.py")
    assert "dropout: float = 0.3" in model  # it depends on the rank
    (project.path / "src/model.py").write_text(model.replace("dropout: float = 0.3", "dropout=0.0"))
    script = re.search(r"```sh\n(.*?)```", project.read("docs/kubernetes.md"), re.DOTALL)
    assert script
    (project.path / "src/train.sh").write_text(script[1])
    program = install_agent(profile, agent, project, tmp_path / "agent")
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"

    with operator(program, BY_SCRIPT, project, words, undisturbed) as job:
        pods = job.add_pod("127.0.0.2"), job.add_pod("127.0.0.3")
        job.start(*pods)
        with pytest.raises(JobFailed, match="needs it ready"):
            job.start(*pods)
        job.complete(*pods)

    with operator(program, BY_SCRIPT, project, words, disturbed) as job:
        first, second = job.add_pod("127.0.0.2"), job.add_pod("127.0.0.3")
        job.start(first, second)
        wait_until(lambda: first.printed("step=12 "))
        job.lose(first, second)

        with operator(program, ["train.py"], project, words, disturbed) as other:
            pod = other.add_pod("127.0.0.4")
            other.start(pod)
            with pytest.raises(JobFailed, match="worker process has crashed"):
                other.complete(pod)
            assert pod.printed("global batch")
            pod.request("stop", {})  # which the operator does not know of
            with pytest.raises(JobFailed, match="went from faulted to"):
                pod.has("ready")

        third = job.add_pod("127.0.0.2")
        job.start(second)
        wait_until(lambda: second.printed("step=22 "))
        job.stop(second, graceful=True)
        job.start(third, second)
        job.complete(third, second)

    assert second.printed("world_size=2 x accumulate_grad_batches=2")
    assert second.printed("resume: from") and second.printed("stopped by SIGUSR1 at step")
    assert third.printed("world_size=4 x accumulate_grad_batches=1")
    assert third.printed("resume: from") and not third.printed("step=22 ")
    gap = largest_gap(undisturbed, disturbed)
    print(f"largest difference: {gap:.1e}")
    assert gap < 1e-5
