"""job.toml, what fits what, the request that would be sent, and the mistakes that preflight has to find."""

import dataclasses
import functools
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from launch import ROOT, account, entry, job, preflight, profiles, request
from launch.__main__ import main
from launch.job import Job, Network, Spot
from options import METRICS, OPTIONS
from runtime import report
from runtime.command_line import Ratio, option

ROLE = "arn:aws:iam::123456789012:role/training"
BUCKET = "sagemaker-us-east-1-123456789012"
INSTANCE = {"sagemaker_instance_type": '"ml.p4d.24xlarge"'}
LAUNCHERS: dict[str, tuple[str, dict[str, str]]] = {
    "smddp": (
        "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker",
        {
            "sagemaker_distributed_dataparallel_enabled": "true",
            "sagemaker_distributed_dataparallel_custom_mpi_options": '""',
        }
        | INSTANCE,
    ),
    "torch_distributed": (
        "pytorch:2.13-cu133-amzn2023-sagemaker",
        {"sagemaker_torch_distributed_enabled": "true"} | INSTANCE,
    ),
    "pytorchddp": (
        "pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker",
        {"sagemaker_pytorch_ddp_enabled": "true"} | INSTANCE,
    ),
    "none": ("pytorch:2.13-cu133-amzn2023-sagemaker", {}),
}
NETWORK = Network(["subnet-0123456789abcdef0"], ["sg-0123456789abcdef0"], encrypt=True)


botocore.session.create_loader = functools.cache(botocore.session.create_loader)  # AWS's models are parsed once


@pytest.fixture
def good() -> Job:
    return Job(
        name="language-id",
        region="us-east-1",
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        role=ROLE,
        hyperparameters={"epochs": 6, "lr": 2e-3, "dataset": "cldr", "compile": False},
        environment={"NCCL_DEBUG": "WARN"},
        tags={"project": "x"},
    )


def edited(path: Path, changes: dict[str, Any]) -> Path:
    """The project's own job.toml with some values changed, `table.key` or `key`, or added."""
    text = (ROOT / "job.toml").read_text(encoding="utf-8")
    if "{{" in text:
        pytest.skip("in the template, job.toml has no answers yet")
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        line = f"{name} = {json.dumps(value)}"
        text, found = re.subn(rf"(?m)^{name} = [^#\n]*", lambda _, line=line: f"{line} ", text)
        if not found:
            text = re.sub(rf"(?m)^\[{table}\].*", lambda heading, line=line: f"{heading[0]}\n{line}", text)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_projects_own_job_stands(tmp_path):
    assert not preflight.refused(preflight.quick(job.load(edited(tmp_path / "job.toml", {}))))


def test_job_toml_names_every_mistake_at_once(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'nmae = "x"\nregion = 7\ninstance_type = "ml.g5.xlarge"\ninstance_count = true\nmax_run_s = 0\n'
        "volume_gb = 1.5\n"
        'distribution = "mpi"\nspot = 3\n[network]\nsubnets = "subnet-1"\n[hyperparameters]\nlr = [1]\n[tags]\na = 1\n'
    )
    with pytest.raises(job.JobError) as raised:
        job.load(path)
    expected = {
        'nmae = "x"': "did you mean name?",
        "name": "missing",
        "region = 7": "text",
        "instance_count = true": "whole number",
        "max_run_s = 0": "at least 1",
        "volume_gb = 1.5": "whole number",
        'distribution = "mpi"': "one of auto, smddp, torch_distributed, pytorchddp, none",
        "spot = 3": "[spot]",
        'network.subnets = "subnet-1"': "list",
        "hyperparameters.lr = [1]": "number",
        "tags.a = 1": "text",
    }
    assert len(raised.value.problems) == len(expected)
    for found, wanted in expected.items():
        assert any(p.startswith(found) and wanted in p for p in raised.value.problems), (found, raised.value.problems)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = ", b'a = "\n"', b"[a]\n[a]"])
def test_what_is_no_toml_is_said_in_a_sentence(tmp_path, content, capsys):
    (tmp_path / "job.toml").write_bytes(content)
    assert main(["submit", "--dry-run", "--job", str(tmp_path / "job.toml")]) == 1
    assert main(["submit", "--dry-run", "--job", str(tmp_path / "absent.toml")]) == 1
    said = capsys.readouterr()
    assert not said.out and len(said.err.splitlines()) == 2 and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("instance", "count", "launcher"),
    [
        ("ml.p4d.24xlarge", 2, "smddp"),
        ("ml.p4de.24xlarge", 1, "smddp"),
        ("ml.p5.48xlarge", 1, "torch_distributed"),
        ("ml.g5.12xlarge", 1, "torch_distributed"),
        ("ml.g5.xlarge", 2, "torch_distributed"),
        ("ml.g5.xlarge", 1, "none"),
        ("ml.m5.xlarge", 1, "none"),
        ("ml.m5.xlarge", 2, "torch_distributed"),
        ("ml.g7.48xlarge", 1, "torch_distributed"),  # its GPUs are not in the table: torchrun uses what it finds
    ],
)
def test_auto_follows_the_instance(good, instance, count, launcher):
    assert profiles.launcher(replace(good, instance_type=instance, instance_count=count)) == launcher


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("spot", "network"), [(False, False), (True, True)])
def test_request(good, launcher, spot, network):
    """Member by member; the job's name, which holds the time, is taken from the request itself."""
    image, flags = LAUNCHERS[launcher]
    wanted = replace(
        good,
        distribution=launcher,
        instance_count=1 if launcher == "none" else 2,
        spot=Spot(spot, 90_000),
        network=NETWORK if network else Network(),
        channels={"training": "s3://data/x/"} if network else {},
        keep_alive_s=0 if spot else 600,
        forward_stop=spot,
    )
    made = request.dry_run(wanted)
    assert not list(preflight.violations(made, preflight.shape("CreateTrainingJobRequest")))
    name = made["TrainingJobName"]
    assert re.fullmatch(r"language-id-\d{8}-\d{6}", name)
    entrypoint = {"ContainerEntrypoint": entry.FORWARDING} if spot else {}
    assert made.pop("AlgorithmSpecification") == entrypoint | {
        "TrainingImage": f"763104351884.dkr.ecr.us-east-1.amazonaws.com/{image}",
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": m, "Regex": report.metric_regex(m)} for m in METRICS],
    }
    assert made.pop("HyperParameters") == flags | {
        "epochs": "6",
        "lr": "0.002",
        "dataset": '"cldr"',
        "compile": "false",
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": f'"s3://{BUCKET}/{name}/source/sourcedir.tar.gz"',
        "sagemaker_container_log_level": "20",
        "sagemaker_job_name": f'"{name}"',
        "sagemaker_region": '"us-east-1"',
    }
    resources = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": wanted.instance_count, "VolumeSizeInGB": 100}
    assert made.pop("ResourceConfig") == resources | ({} if spot else {"KeepAlivePeriodInSeconds": 600})
    waiting = {"MaxWaitTimeInSeconds": 90_000} if spot else {}
    assert made.pop("StoppingCondition") == {"MaxRuntimeInSeconds": 86_400} | waiting
    assert made.pop("EnableManagedSpotTraining", False) == spot
    assert made.pop("CheckpointConfig") == {"S3Uri": f"s3://{BUCKET}/{name}/checkpoints"}
    assert made.pop("EnableInterContainerTrafficEncryption", False) == network
    vpc = {"Subnets": NETWORK.subnets, "SecurityGroupIds": NETWORK.security_groups}
    assert made.pop("VpcConfig", None) == (vpc if network else None)
    channel = {"S3DataType": "S3Prefix", "S3Uri": "s3://data/x/", "S3DataDistributionType": "FullyReplicated"}
    data = [{"ChannelName": "training", "DataSource": {"S3DataSource": channel}}]
    assert made.pop("InputDataConfig", None) == (data if network else None)
    assert made == {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/"},
        "Environment": {"NCCL_DEBUG": "WARN"},
        "Tags": [{"Key": "project", "Value": "x"}],
        "ProfilerConfig": {"DisableProfiler": True},
    }


def test_a_cpu_image_for_a_cpu_instance_and_its_own_account_for_a_region(good):
    uri = request.image_uri(replace(good, instance_type="ml.m5.xlarge", instance_count=1, region="af-south-1"))
    assert uri == "626614931356.dkr.ecr.af-south-1.amazonaws.com/pytorch:2.13-cpu-amzn2023-sagemaker"


def test_a_dry_run_needs_no_credentials_and_prints_json_only(tmp_path, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    path = edited(tmp_path / "job.toml", {"role": "", "distribution": "torch_distributed"})
    assert main(["submit", "--dry-run", "--job", str(path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["RoleArn"] == "arn:aws:iam::000000000000:role/placeholder-for-dry-run"


def test_metrics_are_read_from_the_lines_that_training_prints():
    values = {"step": 7, "epoch": 1, "train/loss": 1.5, "val/accuracy": 2e-05, "lr": 0.002, "samples_per_second": 1e6}
    printed = report.format_metrics(values)
    for definition in request.metric_definitions():
        found = re.search(definition["Regex"], printed)
        assert (float(found[1]) if found else None) == values.get(definition["Name"])


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "SMDDP on g5": ({"distribution": "smddp", "instance_type": "ml.g5.12xlarge"}, "SMDDP does not run on ml.g5.12xl"),
    "SMDDP on p3dn": ({"distribution": "smddp", "instance_type": "ml.p3dn.24xlarge"}, "SMDDP does not run on ml.p3dn"),
    "SMDDP on p5": ({"distribution": "smddp", "instance_type": "ml.p5.48xlarge"}, "SMDDP does not run on ml.p5.48xl"),
    "mistyped hyperparameter": ({"hyperparameters.epoch": 3}, "hyperparameters.epoch: .* did you mean epochs"),
    "lr as text": ({"hyperparameters.lr": "2e-3"}, 'hyperparameters.lr: "2e-3" is text'),
    "lr as a word": ({"hyperparameters.lr": "fast"}, "hyperparameters.lr: .*text"),
    "lr below zero": ({"hyperparameters.lr": -1.0}, "hyperparameters.lr: .*expected a finite number above 0"),
    "max_wait below max_run": ({"spot.enabled": True, "spot.max_wait_s": 60}, "spot.max_wait_s: 60 is below"),
    "spot without checkpoints": ({"spot.enabled": True, "checkpoint_s3": ""}, "checkpoint_s3: spot without"),
    "spot kept alive": ({"spot.enabled": True, "keep_alive_s": 60}, "keep_alive_s: spot"),
    "name of 70": ({"name": "x" * 70}, "name: 86 characters, and AWS takes 63; at most 47"),
    "name with _": ({"name": "a_b"}, "name: "),
    "environment value of 600": ({"environment.BIG": "x" * 600}, "environment.BIG: 600 .* 512"),
    "environment name": ({"environment.1A": "x"}, "environment.1A: "),
    "spot that never resumes": ({"spot.enabled": True, "hyperparameters.resume": "never"}, "would begin there again"),
    "rank in the environment": ({"environment.RANK": "0"}, "environment.RANK: the launcher sets it"),
    "secret": ({"environment.HF_TOKEN": "hf_" + "a" * 34}, "HF_TOKEN: looks like a secret"),
    "hyperparameter of 2501": ({"hyperparameters.dataset": "x" * 2500}, "hyperparameters.dataset: 2502 .* 2500"),
    "keep-alive": ({"keep_alive_s": 21_601}, "keep_alive_s: 21601, and AWS takes 21600"),
    "29 days": ({"max_run_s": 29 * 86_400}, "max_run_s: "),
    "no such instance": ({"instance_type": "ml.p4d.24xlagre"}, "did you mean ml.p4d.24xlarge"),
    "no such region": ({"region": "us-eats-1"}, "did you mean us-east-1"),
    "no such image": ({"image": "curent"}, "did you mean current"),
    "image elsewhere": ({"image": "1.dkr.ecr.eu-west-1.amazonaws.com/x:1"}, "image: it lies in eu-west-1"),
    "image without SMDDP": ({"distribution": "smddp", "image": "current"}, 'image: .* set image = "smddp"'),
    "two hosts, no launcher": ({"distribution": "none"}, "rank 0"),
    "idle GPUs": (
        {"distribution": "none", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
        "7 of 8 paid GPUs would idle",
    ),
    "mpirun without GPUs": ({"distribution": "pytorchddp", "instance_type": "ml.m5.xlarge"}, "needs GPUs"),
    "Trainium": ({"instance_type": "ml.trn1.2xlarge"}, "do not run on ml.trn1"),
    "V100 under CUDA 13": ({"instance_type": "ml.p3.2xlarge", "instance_count": 1}, "does not support the GPUs of p3"),
    "subnets alone": ({"network.subnets": ["subnet-0123456789abcdef0"]}, "drops both"),
    "channel with a hyphen": ({"channels.my-data": "s3://bucket/x"}, "channels.my-data: SM_CHANNEL_MY-DATA"),
    "channel not in S3": ({"channels.training": "/data"}, 'channels.training: "/data" is no S3 address'),
    "no training channel": (
        {"hyperparameters.dataset": "training"},
        r"hyperparameters.dataset: \[channels\] has no training",
    ),
    "role": ({"role": "arn:aws:iam::12:role/x"}, "role: "),
    "bucket": ({"bucket": "s3://bucket"}, "bucket: "),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_preflight_refuses(tmp_path, capsys, mistake):
    changes, line = BROKEN[mistake]
    path = edited(tmp_path / "job.toml", changes)
    assert main(["submit", "--dry-run", "--job", str(path)]) == 1  # nothing that preflight refuses is sent
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if line.startswith("error ")]
    assert not said.out
    assert any(re.search(line, error) for error in errors), said.err
    assert all(re.match(r"error   [\w./\[\], -]+: .+; .+", error) for error in errors), errors


def test_a_new_option_is_known_at_once(good, monkeypatch):
    new = dataclasses.make_dataclass("New", [("smoothing", Ratio, option(0.0, "label smoothing"))], frozen=True)
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    told = {0.1: None, 1.0: "expected a number from 0 to below 1", "0.1": '"0.1" is text, and train.py takes a number'}
    for value, problem in told.items():
        found = list(preflight.hyperparameters(replace(good, hyperparameters={"smoothing": value})))
        assert problem in str(found[0]) if problem else not found
    (unknown,) = preflight.hyperparameters(replace(good, hyperparameters={"smothing": 0.1}))
    assert str(unknown).endswith("did you mean smoothing?")


def test_an_image_without_patches_is_said_and_its_alternative(good):
    before = list(preflight.cluster(replace(good, distribution="smddp"), today=date(2025, 10, 29)))
    after = list(preflight.cluster(replace(good, distribution="smddp"), today=date(2025, 10, 30)))
    assert not before
    assert [f.level for f in after] == ["warning"]
    assert "no security patches since 2025-10-29" in str(after[0]) and 'image = "current"' in str(after[0])


def test_what_only_this_machine_has_is_warned_of_and_a_tokenizer_is_no_secret(good, tmp_path):
    (tmp_path / "here.csv").touch()
    options = {
        "dataset": str(tmp_path / "here.csv"),
        "model_name": "s3://bucket/model",
        "tokenizer_name": "bert-base-cased",
    }
    found = list(preflight.consistency(replace(good, hyperparameters=options)))
    assert [(f.level, f.key) for f in found] == [
        ("warning", "hyperparameters.dataset"),
        ("warning", "hyperparameters.model_name"),
    ]


def test_source_folder(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    assert {f.key for f in preflight.source(folder)} == {"src/train.py", "src/requirements.txt"}
    for name in ("train.py", "requirements.txt"):
        (folder / name).touch()
    assert not list(preflight.source(folder))
    (folder / "train.csv").touch()
    (folder / ".env").touch()
    (folder / "keys.py").write_text("KEY = 'AKIAABCDEFGHIJKLMNOP'")
    (folder / "a.ipynb").write_text('{"cells": [{"outputs": [{"output_type": "stream"}]}]}')
    (folder / "link.py").symlink_to(tmp_path / "elsewhere")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.zip").touch()
    (folder / "b.ipynb").write_text('{"cells": [{"outputs": [{"output_type": "stream"}]}]}' + " " * 3_000_000)
    (folder / "big.bin").write_bytes(b"\0" * (51 * 2**20))
    found = {f.key for f in preflight.source(folder)}
    assert found == {"src/train.csv", "src/.env", "src/keys.py", "src/a.ipynb", "src/b.ipynb", "src/link.py", "src/"}


@pytest.mark.parametrize(
    "line", ["torch", "torch==2.13.0", "torch [x] >2", "Triton", "nvidia_nccl_cu12", "torchvision"]
)
def test_requirements_that_name_torch(good, tmp_path, line):
    (tmp_path / "requirements.txt").write_text(f"# torch stays\ntorchmetrics\n{line}\n")
    found = list(preflight.named_torch(good, tmp_path / "requirements.txt"))
    assert not list(preflight.requirements(good, tmp_path / "requirements.txt"))  # once is enough
    assert [f.level for f in found] == ["error"] and "would replace" in str(found[0]) and line in str(found[0])


def test_cost_is_never_invented(good):
    assert "2 instances × 24 h" in account.ceiling(good, offline=True)
    assert not re.search(r"\$|per hour|an hour", account.ceiling(good, offline=True))
    assert "at most 96.00: 2 instances × 24 h (max_run_s) × 2 an hour" in account.ceiling(
        replace(good, price_per_hour=2.0)
    )


def test_help_answers_without_the_sdk():
    code = "import sys, launch.__main__ as m\ntry: m.main(['--help'])\nexcept SystemExit as e: assert not e.code\n"
    heavy = "assert not {'boto3', 'sagemaker', 'torch', 'rich'} & sys.modules.keys()"
    assert "preflight" in subprocess.check_output([sys.executable, "-c", code + heavy], cwd=ROOT, text=True)


@pytest.mark.parametrize("status", [0, 3])
def test_the_stop_forwarding_entry_ends_with_the_scripts_own_status(tmp_path, monkeypatch, status):
    start = tmp_path / "start_with_right_hostname.sh"
    start.write_text(f"#!/bin/sh\nexit {status}\n")
    start.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for _ in range(3):
        assert subprocess.run(entry.FORWARDING).returncode == status
