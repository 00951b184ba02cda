"""SageMaker's SIGTERM reaches the ranks through the opt-in entry point, in a PID namespace."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small
from small_rehearsal import script, small_plan, small_request

from smlightning.launch.launchers import FORWARDING
from smlightning.rehearsal.hosts import create_hosts
from smlightning.testing.processes import free_port

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
LOG = Path("log")


def require_namespaces() -> None:
    if shutil.which("unshare"):
        probe = subprocess.run([*UNSHARE, "true"], capture_output=True)
        if probe.returncode == 0:
            return
    reason = "a PID namespace is needed: run as root on Linux, with util-linux installed"
    give_up = pytest.fail if os.environ.get("REQUIRE_TOOLS") else pytest.skip
    give_up(reason)


def create_container(folder: Path) -> tuple[Path, Path]:
    """/opt/ml of one host with a long training, and a folder with the image's own script."""
    options = {**small.options(folder), "epochs": 500, "log_every": 5}
    request = small_request(
        1, "torch_distributed", instance_type="ml.c5.xlarge", hyperparameters=options
    )
    [host] = create_hosts(small_plan(1, 1, request=request), folder / "run")
    programs = folder / "bin"
    programs.mkdir()
    script(programs / "start_with_right_hostname.sh", '"$@"')
    return host.base, programs


def container_variables(base: Path, programs: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SAGEMAKER_BASE_DIR": str(base),
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
        "AWS_REGION": "us-east-1",
        "OMP_NUM_THREADS": "1",
        "PET_MASTER_PORT": str(free_port()),  # the toolkit names none to torchrun
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


@pytest.mark.long  # test_attempts.py: the same entry, but not as process 1 of a namespace
def test_a_stop_reaches_the_ranks(tmp_path: Path) -> None:
    require_namespaces()
    base, programs = create_container(tmp_path)
    variables = container_variables(base, programs)
    with LOG.open("w") as log:
        command = [*UNSHARE, *FORWARDING]
        container = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while "step=5" not in LOG.read_text() and time.monotonic() < deadline:
            if container.poll() is not None:
                break
            time.sleep(0.2)
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text()
        first = int(children.split()[0])
        os.kill(first, signal.SIGTERM)  # to process 1 of the namespace, as SageMaker does
        container.wait(110)  # SageMaker leaves 120 s
    finally:
        container.kill()
    text = LOG.read_text()
    assert "stopped by SIGTERM at step" in text, text[-3000:]
    assert list((base / "checkpoints").glob("*.ckpt"))
    assert container.returncode != 0, "a run that was stopped is not a success"
