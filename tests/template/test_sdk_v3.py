"""The torchrun driver of the SageMaker SDK's version 3, which replaces the toolkit, on two hosts.

ModelTrainer uses it if it gets a SourceCode. Each host has its own mounts and processes; its first
process is bash, as in AWS's container.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from projects import Project, need
from smlightning.launch import source_archive
from smlightning.testing.processes import free_port

DRIVERS = "sagemaker/train/container_drivers"
VERSION = "1.27.0"
# The steps of version 3's sm_train.sh, on a free port, since other tests use 7777. /opt is a copy:
# the test leaves no /opt/ml behind, by which the toolkit would know a container.
HOST = """
mkdir "$BASE/opt"
mount --rbind /opt "$BASE/opt"
mount -t tmpfs none /opt
for old in "$BASE"/opt/*; do mkdir "/opt/${old##*/}"; mount --rbind "$old" "/opt/${old##*/}"; done
mkdir -p /opt/ml
mount --bind "$BASE" /opt/ml
printf '127.0.0.1 localhost algo-1 algo-2\\n' > /opt/ml/hosts
mount --bind /opt/ml/hosts /etc/hosts
python3 /opt/ml/input/data/sm_drivers/scripts/environment.py > /opt/ml/environment.log
sed -i "s/7777/$PORT/" /opt/ml/input/sm_training.env
source /opt/ml/input/sm_training.env
cd /opt/ml/input/data/code
python3 /opt/ml/input/data/sm_drivers/distributed_drivers/torchrun_driver.py
exit $?
"""
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def create_host(base: Path, name: str, drivers: Path, source: Path, options: Any) -> None:
    """The files of /opt/ml that SageMaker and ModelTrainer give one of two hosts."""
    for folder in ("input/config", "input/data", "model", "output/data", "checkpoints"):
        (base / folder).mkdir(parents=True)
    copy = base / "input/data/sm_drivers"
    subprocess.run(["cp", "-r", str(drivers), str(copy)], check=True)
    source_archive.copy(source, base / "input/data/code")
    resources = {
        "current_host": name,
        "hosts": ["algo-1", "algo-2"],
        "network_interface_name": "lo",
        "current_instance_type": "ml.g5.12xlarge",
    }
    for path, content in {
        "input/config/resourceconfig.json": resources,
        "input/config/inputdataconfig.json": {},
        "input/config/hyperparameters.json": options,
        "input/data/sm_drivers/sourcecode.json": {"entry_script": "train.py"},
        "input/data/sm_drivers/distributed.json": {"process_count_per_node": 2, "smp": None},
    }.items():
        (base / path).write_text(json.dumps(content))


def start(base: Path, port: int) -> "subprocess.Popen[bytes]":
    """Start a host; its output goes to ``log``."""
    programs = Path(sys.executable).parent
    environment = {
        "BASE": str(base),
        "PORT": str(port),
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(base),
        "TRAINING_JOB_NAME": "v3",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with (base / "log").open("wb") as log:
        command = [*UNSHARE, "bash", "-c", HOST]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def train(
    folder: Path, drivers: Path, source: Path, options: dict[str, str], stop_after: str = ""
) -> list[int]:
    """Exit codes of two hosts; their first processes get SIGTERM after a line of the log."""
    bases = [folder / "algo-1", folder / "algo-2"]
    for base in bases:
        create_host(base, base.name, drivers, source, options)
    port = free_port()
    hosts = [start(base, port) for base in bases]
    try:
        if stop_after:
            deadline = time.monotonic() + 120
            while stop_after not in (bases[0] / "log").read_text():
                assert time.monotonic() < deadline, (bases[0] / "log").read_text()[-3000:]
                time.sleep(0.1)
            for host in hosts:
                children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text()
                subprocess.run(["kill", f"-{signal.SIGTERM.value}", *children.split()], check=True)
        return [host.wait(timeout=100) for host in hosts]
    finally:
        for host in hosts:
            host.kill()


@pytest.mark.long
def test_version_3s_torchrun_driver_trains_on_two_hosts(
    project: Project, words: Path, tmp_path: Path
) -> None:
    """Options arrive. SageMaker's SIGTERM does not: only checkpoints survive a stop."""
    need("unshare", root=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    place = tmp_path / "sdk"
    subprocess.run([*install, "--target", place, f"sagemaker-train=={VERSION}"], check=True)
    drivers, source = place / DRIVERS, project.path / "src"

    options = {"dataset": str(words), "max_steps": "30", "batch_size": "8", "log_every": "5"}
    codes = train(tmp_path / "trained", drivers, source, options, stop_after="step=5 ")
    log = (tmp_path / "trained/algo-1/log").read_text()
    assert codes == [0, 0], log[-3000:]
    assert "world_size=4" in log and "step=30 " in log
    assert (tmp_path / "trained/algo-1/model/model.safetensors").is_file()
    assert list((tmp_path / "trained/algo-1/checkpoints").glob("*step000030*"))

    codes = train(tmp_path / "failed", drivers, source, {"epochs": "many"})
    assert codes == [1, 1]
    assert "--epochs: found 'many'" in (tmp_path / "failed/algo-1/output/failure").read_text()
