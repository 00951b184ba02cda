"""SDK v3, in the environment that `make sdk-v3` makes: the request is v2's, and what is sent trains on two hosts."""

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import botocore.session
import pytest

import small
from launch import ROOT, SRC, job, request

PYTHON = Path(os.environ.get("SDK_V3", Path(sys.prefix) / "sdk-v3")) / "bin" / "python"
PLAIN = 'name = "language-id"\nregion = "us-east-1"\nrole = "arn:aws:iam::123456789012:role/training"\n'
DRY = """
import functools, sys
import botocore.session
botocore.session.create_loader = functools.cache(botocore.session.create_loader)  # AWS's models are parsed once
from launch.__main__ import main
accepted = ["--accept", "estimator.enable_network_isolation", "--accept", "estimator.volume_kms_key"]
sys.exit(max(main(["submit", "--dry-run", *accepted, "--job", path]) for path in sys.argv[1:]))
"""
# moto is installed beside v2 alone: the end of the path leaves v3's own packages first.
SEND = """
import json, sys
sys.path.append(sys.argv.pop(1))
import boto3
from moto import mock_aws
from launch import job, request
with mock_aws():
    session = boto3.Session(region_name="us-east-1")
    session.client("s3").create_bucket(Bucket="code")
    name = request.submit(job.load(sys.argv[1]))
    made = session.client("sagemaker").describe_training_job(TrainingJobName=name)
    session.client("s3").download_file("code", f"team/{name}/source/sourcedir.tar.gz", "sourcedir.tar.gz")
    json.dump(made, open("sent.json", "w"), default=str)
"""


botocore.session.create_loader = functools.cache(botocore.session.create_loader)  # AWS's models are parsed once


@pytest.fixture(autouse=True)
def installed() -> None:
    if not PYTHON.exists():
        reason = "SDK v3 is needed, in an environment of its own: make sdk-v3"
        (pytest.fail if os.environ.get("REQUIRE_TOOLS") else pytest.skip)(reason)


def under_v3(code: str, *arguments: object) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"PYTHONPATH": str(ROOT), "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    command = [str(PYTHON), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def written(path: Path, distribution: str, spot: bool = False, vpc: bool = False, more: str = "") -> Path:
    instance, hosts = ("ml.c5.xlarge", 1) if distribution == "none" else ("ml.p4d.24xlarge", 2)
    text = PLAIN + f'instance_type = "{instance}"\ninstance_count = {hosts}\ndistribution = "{distribution}"\n'
    text += "" if spot else "keep_alive_s = 600\n"
    text += f"forward_stop = {str(spot).lower()}\n[spot]\nenabled = {str(spot).lower()}\n"
    if vpc:
        text += '[network]\nsubnets = ["subnet-0123456789abcdef0"]\nsecurity_groups = ["sg-0123456789abcdef0"]\n'
        text += 'encrypt = true\n[channels]\ntraining = "s3://data/x/"\n[hyperparameters]\ndataset = "training"\n'
    path.write_text(text + more)
    return path


def timeless(made: dict[str, Any]) -> Any:
    """The request with its name, which holds the time, taken out of every member that it stands in."""
    return json.loads(json.dumps(made).replace(made["TrainingJobName"], "NAME"))


def test_the_request_is_the_one_of_v2(tmp_path, monkeypatch):
    """Every launcher, on spot and in a VPC; neither, with [estimator]; and always the SDK's own configuration file."""
    defaults = {"OutputDataConfig": {"KmsKeyId": "alias/all"}, "ResourceConfig": {"VolumeKmsKeyId": "1a-2b"}}
    defaults |= {"EnableNetworkIsolation": False, "Environment": {"FROM_FILE": "1"}}
    defaults |= {"Tags": [{"Key": "project", "Value": "theirs"}, {"Key": "team", "Value": "x"}]}
    config = tmp_path / "config.yaml"  # JSON is YAML
    config.write_text(json.dumps({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": defaults}}))
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(config))
    launchers = ("torch_distributed", "smddp", "pytorchddp", "none")
    cases = [(launcher, spot, not spot) for launcher in launchers for spot in (False, True)]
    paths = [written(tmp_path / f"{index}.toml", *case) for index, case in enumerate(cases)]
    more = """[environment]\nNCCL_DEBUG = "INFO"\n[tags]\nproject = "x"\n
[estimator]\noutput_path = "s3://models/team/"\nmax_retry_attempts = 2\nenable_remote_debug = true
output_kms_key = "alias/own"\nvolume_kms_key = "3c-4d"\nenable_infra_check = false\ninput_mode = "FastFile"
enable_network_isolation = true
"""
    stream = '[channels]\ntraining = { s3_data = "s3://data/x/", input_mode = "FastFile" }\n'
    stream += '[hyperparameters]\ndataset = "training"\nlr = 2e-3\ncompile = false\n'
    paths.append(written(tmp_path / "more.toml", "torch_distributed", more=stream + more))
    decoder, text = json.JSONDecoder(), under_v3(DRY, *paths)
    for path in paths:
        made, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        assert timeless(made) == timeless(request.dry_run(job.load(path))), path.read_text()
    assert not text.strip()


def test_what_is_sent_trains_on_two_hosts_through_the_images_toolkit(tmp_path):
    """`submit` under v3 against moto; then its hyperparameters and its archive, as sent, go to the real toolkit."""
    more = '[hyperparameters]\ndataset = "training"\nepochs = 1\nbatch_size = 16\n'
    more += '[channels]\ntraining = "s3://code/x/"\n[estimator]\noutput_path = "s3://code/team/"\n'
    under_v3(SEND, Path(pytest.__file__).parents[1], written(tmp_path / "job.toml", "torch_distributed", more=more))
    sent = json.loads(Path("sent.json").read_text())
    archive = sent["HyperParameters"]["sagemaker_submit_directory"]
    assert archive == json.dumps(f"s3://code/team/{sent['TrainingJobName']}/source/sourcedir.tar.gz")
    with tarfile.open("sourcedir.tar.gz") as packed:
        packed.extractall("code", filter="data")
    assert {path.relative_to(SRC) for path in SRC.rglob("*.py")} == {
        p.relative_to("code") for p in Path("code").rglob("*.py")
    }
    Path("code/requirements.txt").unlink()  # it is installed here
    hosts = ["127.0.0.1", "127.0.0.2"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands, torchrun = tmp_path / "bin", Path(sys.executable).parent / "torchrun"
    commands.mkdir()  # the toolkit names port 7777, which may be taken here: the same torchrun, on a free one
    (commands / "torchrun").write_text(f'#!/bin/bash\nexec "{torchrun}" "${{@/#7777/{port}}}"\n')
    (commands / "torchrun").chmod(0o755)
    running = []
    for host in hosts:
        base = tmp_path / host
        for folder in ("input/config", "model", "output/data"):
            (base / folder).mkdir(parents=True)
        shutil.copytree("code", base / "code")
        (base / "input" / "data" / "training").mkdir(parents=True)
        shutil.copy(small.options(tmp_path)["dataset"], base / "input" / "data" / "training")
        group = {"instance_group_name": "one", "instance_type": "ml.p4d.24xlarge", "hosts": hosts}
        resources = {"current_host": host, "hosts": hosts, "network_interface_name": "lo", "instance_groups": [group]}
        resources |= {"current_instance_type": "ml.p4d.24xlarge", "current_group_name": "one"}
        hyperparameters = sent["HyperParameters"] | {"sagemaker_submit_directory": json.dumps(str(base / "code"))}
        channels = {"training": {"TrainingInputMode": "File"}}
        for name, content in (
            ("hyperparameters", hyperparameters),
            ("resourceconfig", resources),
            ("inputdataconfig", channels),
        ):
            (base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
        env = {**os.environ, "SAGEMAKER_BASE_DIR": str(base), "AWS_REGION": "us-east-1", "OMP_NUM_THREADS": "1"}
        env |= {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}
        env["PATH"] = f"{commands}:{torchrun.parent}:{env['PATH']}"
        with (base / "log").open("w") as log:
            running.append(subprocess.Popen(["train"], env=env, stdout=log, stderr=log))
    try:
        codes = [process.wait(150) for process in running]
    finally:
        for process in running:
            process.kill()
    logs = "".join((tmp_path / host / "log").read_text() for host in hosts)
    assert codes == [0, 0], logs[-4000:]
    assert all((tmp_path / host / "output" / "success").exists() for host in hosts)
    written_by = [host for host in hosts if any((tmp_path / host / "model").iterdir())]
    assert "test/accuracy" in logs and written_by == hosts[:1], "one rank of both hosts writes the model"
