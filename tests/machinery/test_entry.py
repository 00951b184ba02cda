"""SageMaker's SIGTERM reaches the ranks through the opt-in entry, in a PID namespace with the real toolkit inside."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import small
import train
from launch.profiles import FORWARDING

SRC = Path(train.__file__).parent
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def can_unshare() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


def test_a_stop_reaches_the_ranks(tmp_path: Path) -> None:
    if not can_unshare():
        reason = "a PID namespace is needed: run as root on Linux, with util-linux installed"
        (pytest.fail if os.environ.get("REQUIRE_TOOLS") else pytest.skip)(reason)
    base, commands = tmp_path / "ml", tmp_path / "bin"
    config = base / "input" / "config"
    for folder in (config, base / "model", base / "output" / "data", base / "input" / "data", commands):
        folder.mkdir(parents=True)
    shutil.copytree(SRC, base / "code", ignore=shutil.ignore_patterns("requirements.txt", "__pycache__"))
    options = {**small.options(tmp_path), "epochs": 500, "log_every": 5, "sagemaker_program": "train.py"}
    options |= {"sagemaker_torch_distributed_enabled": True, "sagemaker_region": "us-east-1"}
    hosts = {"current_host": "127.0.0.1", "hosts": ["127.0.0.1"], "network_interface_name": "lo"}
    hosts |= {"current_instance_type": "ml.c5.xlarge", "current_group_name": "one"}
    group = {"instance_group_name": "one", "instance_type": "ml.c5.xlarge", "hosts": ["127.0.0.1"]}
    hosts |= {"instance_groups": [group]}
    for name, content in (
        ("hyperparameters", {key: json.dumps(value) for key, value in options.items()}),
        ("resourceconfig", hosts),
        ("inputdataconfig", {}),
    ):
        (config / f"{name}.json").write_text(json.dumps(content))
    starter = commands / "start_with_right_hostname.sh"
    starter.write_text('#!/bin/bash\n"$@"\n')
    starter.chmod(0o755)
    env = {**os.environ, "SAGEMAKER_BASE_DIR": str(base), "AWS_REGION": "us-east-1", "OMP_NUM_THREADS": "1"}
    with socket.socket() as probe:  # the toolkit names no port to torchrun, and its own default may be taken
        probe.bind(("127.0.0.1", 0))
        env["PET_MASTER_PORT"] = str(probe.getsockname()[1])
    env["SAGEMAKER_TRAINING_MODULE"] = "sagemaker_pytorch_container.training:main"
    env["PATH"] = f"{commands}:{Path(sys.executable).parent}:{env['PATH']}"
    with Path("log").open("w") as log:
        container = subprocess.Popen([*UNSHARE, *FORWARDING], env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while "step=5" not in Path("log").read_text() and time.monotonic() < deadline and container.poll() is None:
            time.sleep(0.2)
        first = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()[0]
        os.kill(int(first), signal.SIGTERM)  # to process 1 of the namespace, as SageMaker does
        container.wait(110)  # SageMaker leaves 120 s
    finally:
        container.kill()
    text = Path("log").read_text()
    assert "stopped by SIGTERM at step" in text, text[-3000:]
    assert list((base / "checkpoints").glob("*.ckpt"))
    assert container.returncode != 0, "a run that was stopped is not a success"
