"""The ModelTrainer of docs/recipes.md sends src/ as it is, and its driver trains with it.

Version 3 of the SageMaker SDK, about 1 GB, is installed into an environment of its own. Its own
script then runs on two hosts, each with a new environment without smlightning.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import checkout
import two_hosts
from projects import Project, need
from test_source_dir import new_environment

VERSION = "1.27.0"
HOSTS = ("algo-1", "algo-2")  # version 3 knows rank 0's host by this name
ROLE = "arn:aws:iam::123456789012:role/training"

# Runs the recipe; what it would upload and send goes into a folder.
SEND = """
import json, shutil, sys
import botocore.client
from sagemaker.core.helper.session_helper import Session

recipe, folder = sys.stdin.read(), sys.argv[1]

def call(client, operation, arguments):
    if operation == "CreateTrainingJob":
        with open(f"{folder}/request.json", "w") as file:
            json.dump(arguments, file)
        sys.exit()
    return {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me"}

def upload(session, path, key_prefix, **_):
    shutil.copytree(path, f"{folder}/{key_prefix.rpartition('/')[2]}")
    return f"s3://bucket/{key_prefix}"

botocore.client.BaseClient._make_api_call = call
Session.upload_data = upload
Session.default_bucket = lambda session: "bucket"
exec(recipe)
"""


@pytest.fixture(scope="module")
def sent(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with version 3's request and, by the names of their channels, its uploads."""
    place, folder = tmp_path_factory.mktemp("sdk"), tmp_path_factory.mktemp("sent")
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, place], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", place]
    subprocess.run([*install, f"sagemaker-train=={VERSION}"], check=True)
    page = (checkout.PROJECT / "docs/recipes.md").read_text(encoding="utf-8")
    section = page.split("\n## Send the job with SDK v3\n")[1]
    recipe = section.split("```python\n")[1].split("```")[0]
    for word, value in {"REGION": "us-east-1", "BUCKET": "bucket", '"ROLE"': f'"{ROLE}"'}.items():
        recipe = recipe.replace(word, value)
    subprocess.run(
        [place / "bin" / "python", "-c", SEND, folder],
        input=recipe,
        text=True,
        cwd=project.path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(place),
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "SAGEMAKER_VALIDATE_ROLE": "false",
        },
        check=True,
    )
    return folder


def host(folder: Path, name: str, sent: Path, options: dict[str, str]) -> dict[str, str]:
    """/opt/ml of a host, as SageMaker fills it, and the variables of its processes."""
    base = folder / name
    for needed in ("input/config", "model", "output/data", "checkpoints"):
        (base / needed).mkdir(parents=True)
    for channel in ("code", "sm_drivers"):
        shutil.copytree(sent / channel, base / "input/data" / channel)
    resources = {
        "current_host": name,
        "hosts": HOSTS,
        "network_interface_name": "eth0",
        "current_instance_type": "ml.g5.12xlarge",
    }
    contents = {"resourceconfig": resources, "inputdataconfig": {}, "hyperparameters": options}
    for file, content in contents.items():
        (base / f"input/config/{file}.json").write_text(json.dumps(content))
    python = new_environment(folder / f"image-{name}")
    for script, module in {"pip": "pip", "torchrun": "torch.distributed.run"}.items():
        path = python.with_name(script)
        path.write_text(f'#!/bin/sh\nexec {python} -m {module} "$@"\n')
        path.chmod(0o755)
    return {
        "NAME": name,
        "BASE": str(base),
        "PATH": f"{python.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "TRAINING_JOB_NAME": "v3",
        "PIP_NO_INDEX": "1",  # all that the lock pins is there; only the wheel is installed
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.newest
def test_the_driver_of_model_trainer_installs_and_trains_src(
    sent: Path, project: Project, words: Path, tmp_path: Path
) -> None:
    need("/usr/sbin/sshd", "ip", "unshare", root=True)
    request: dict[str, Any] = json.loads((sent / "request.json").read_text())
    assert {path.name for path in (sent / "code").iterdir()} >= {
        path.name for path in (project.path / "src").iterdir() if path.is_file()
    }
    assert request["CheckpointConfig"]["LocalPath"] == "/opt/ml/checkpoints"
    algorithm = request["AlgorithmSpecification"]
    command = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
    options = {"dataset": str(words), "max_steps": "6", "batch_size": "8", "log_every": "3"}
    hosts = [host(tmp_path, name, sent, options) for name in HOSTS]
    codes = two_hosts.run(tmp_path, hosts, command)
    log = (tmp_path / "log-0").read_text()
    assert codes == [0, 0], log[-3000:]
    assert "step=6 " in log and re.search(r"algo-2 .* 1/2 ", log)
    assert (tmp_path / "algo-1/model/model.safetensors").is_file()
    site = next((tmp_path / "image-algo-2/venv").glob("lib/python*/site-packages"))
    assert (site / "smlightning").is_dir()
