"""job.toml, what fits what, the request that would be sent, and the mistakes that preflight has to find."""

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch import ROOT, account, findings, job, preflight, profiles, request, requirements
from launch.__main__ import main
from launch.job import Job, Network, Spot, Tune
from options import METRICS, OPTIONS
from runtime import report
from runtime.command_line import Ratio, option
from small_job import GOOD, ROLE, edited

BUCKET = "sagemaker-us-east-1-123456789012"
INSTANCE = {"sagemaker_instance_type": '"ml.p4d.24xlarge"'}
MPI = INSTANCE | {"sagemaker_distributed_dataparallel_custom_mpi_options": '"--NCCL_DEBUG=WARN"'}  # or it says INFO
LAUNCHERS: dict[str, tuple[str, dict[str, str]]] = {
    "smddp": (
        "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker",
        {
            "sagemaker_distributed_dataparallel_enabled": "true",
        }
        | MPI,
    ),
    "torch_distributed": (
        "pytorch:2.13-cu133-amzn2023-sagemaker",
        {"sagemaker_torch_distributed_enabled": "true"} | INSTANCE,
    ),
    "pytorchddp": (
        "pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker",
        {"sagemaker_pytorch_ddp_enabled": "true"} | MPI,
    ),
    "none": ("pytorch:2.13-cu133-amzn2023-sagemaker", {}),
}
NETWORK = Network(["subnet-0123456789abcdef0"], ["sg-0123456789abcdef0"], encrypt=True)


@pytest.fixture
def good() -> Job:
    return GOOD


def offline(wanted: Job) -> list[str]:
    return [str(finding) for finding in preflight.offline_checks(wanted)[0]]


def test_the_projects_own_job_passes(tmp_path):
    found, made = preflight.offline_checks(job.load(edited(tmp_path / "job.toml", {})))
    assert made and not findings.refused(found)


def test_job_toml_names_every_mistake_at_once(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'nmae = "x"\nregion = 7\ninstance_type = "ml.g5.xlarge"\ninstance_count = true\nmax_run_s = 0\n'
        "volume_gb = 1.5\nmax_wait_s = 60\n"
        'distribution = "mpi"\nspot.epochs = 3\nmax_retry_attempts = 2\nvolume_size = 9\n'
        '[network]\nsubnets = "subnet-1"\nvolume_gb = 9\ntags = 1\n'
        "[hyperparameters]\nlr = [1]\n[tags]\na = 1\n"
    )
    with pytest.raises(job.JobError) as raised:
        job.load(path)
    expected = {
        'nmae = "x"': "did you mean name?",
        "name": "missing",
        "region = 7": "text",
        "instance_count = true": "whole number",
        "max_run_s = 0": "from 1 to",
        "volume_gb = 1.5": "whole number",
        'distribution = "mpi"': "one of auto, smddp, torch_distributed, pytorchddp, none",
        'network.subnets = "subnet-1"': "list",
        "hyperparameters.lr = [1]": "[tune.ranges]",
        "tags.a = 1": "text",
        "max_wait_s = 60": "set it in [spot]",
        "network.volume_gb = 9": "set it above the first [table]",
        "spot.epochs = 3": "set it in [hyperparameters]",
        "max_retry_attempts = 2": "set it in [estimator]",
        "volume_size = 9": "set volume_gb",
        "network.tags": "write its entries below [tags]",
    }
    problems = str(raised.value).split("\n")
    assert len(problems) == len(expected)
    for found, wanted in expected.items():
        assert any(p.startswith(found) and wanted in p for p in problems), (found, problems)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"a = ", b'a = "\n"', b"[a]\n[a]", b"a = " + b"1" * 5000, b"a = " + b"[" * 5000]
)
def test_what_is_not_toml_is_said_in_a_sentence(tmp_path, content, capsys):
    (tmp_path / "job.toml").write_bytes(content)
    assert main(["submit", "--dry-run", "--job", str(tmp_path / "job.toml")]) == 1
    assert main(["submit", "--dry-run", "--job", str(tmp_path / "absent.toml")]) == 1
    said = capsys.readouterr()
    assert not said.out and len(said.err.splitlines()) == 2 and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            'tags = 1\n[tags]\nteam = "nlp"\n',
            r"a key or a table of this name stands further up \(at line 2, .*\); corr",
        ),
        ("[tags]\n[spot]\n[tags]\n", r"a key or a table of this name stands further up \(at line 3, .*\); corr"),
        (
            "forward_stop = True",
            r"no value of TOML: text stands in straight quotes, true and false are lower case \(at",
        ),
    ],
)
def test_what_is_not_toml_is_said_in_plain_words(tmp_path, content, said):
    (tmp_path / "job.toml").write_text(content)
    with pytest.raises(job.JobError, match=said):
        job.load(tmp_path / "job.toml")


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
        ("ml.g9.48xlarge", 1, "torch_distributed"),  # its GPUs are not in the table: torchrun uses what it finds
        ("ml.gr6.4xlarge", 1, "none"),
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
    assert not list(preflight.limits(made))
    name = made["TrainingJobName"]
    assert re.fullmatch(r"language-id-\d{8}-\d{6}", name)
    entrypoint = {"ContainerEntrypoint": profiles.FORWARDING} if spot else {}
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


ECR = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SUBNET, GROUP = "subnet-0123456789abcdef0", "sg-0123456789abcdef0"
DATA = {"channels.training": "s3://bucket/data/", "hyperparameters.dataset": "training"}
FSX = {"file_system_id": "fs-0123456789abcdef0", "file_system_type": "FSxLustre", "directory_path": "/fsx"}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "SMDDP on g5": ({"distribution": "smddp", "instance_type": "ml.g5.12xlarge"}, "SMDDP does not run on ml.g5.12xl"),
    "SMDDP on p3dn": ({"distribution": "smddp", "instance_type": "ml.p3dn.24xlarge"}, "SMDDP does not run on ml.p3dn"),
    "SMDDP on p5": ({"distribution": "smddp", "instance_type": "ml.p5.48xlarge"}, "SMDDP does not run on ml.p5.48xl"),
    "mistyped hyperparameter": ({"hyperparameters.epoch": 3}, "hyperparameters.epoch: .* did you mean epochs"),
    "key among the hyperparameters": ({"hyperparameters.max_run_s": 60}, "max_run_s: .*; set it above the first"),
    "option among the parameters": ({"estimator.epochs": 3}, r"estimator.epochs: .*; set it in \[hyperparameters\]"),
    "spot's among the parameters": ({"estimator.max_wait_s": 3}, r"estimator.max_wait_s: .*; set it in \[spot\]"),
    "channel that an option names, and no code reads": (
        {"channels.train": "s3://bucket/x", "hyperparameters.dataset": "train"},
        "channels.train: .*no option reads it; name it training",
    ),
    "second channel that nobody reads": (
        DATA | {"channels.more": "s3://bucket/x"},
        'channels.more: .*; give an option its folder, "/opt/ml/input/data/more", or remove it',
    ),
    "lr as a word": ({"hyperparameters.lr": "fast"}, "hyperparameters.lr: found 'fast', expected a finite number"),
    "lr below zero": ({"hyperparameters.lr": -1.0}, "hyperparameters.lr: .*expected a finite number above 0"),
    "max_wait below max_run": ({"spot.enabled": True, "spot.max_wait_s": 60}, "spot.max_wait_s: 60 is below"),
    "spot without checkpoints": ({"spot.enabled": True, "checkpoint_s3": ""}, "checkpoint_s3: spot without"),
    "spot kept alive": ({"spot.enabled": True, "keep_alive_s": 60}, "keep_alive_s: spot"),
    "name of 70": ({"name": "x" * 70}, "name: 86 characters, and AWS allows 63; .*at most 47"),
    "name with _": ({"name": "a_b"}, "name: "),
    "environment value of 600": ({"environment.BIG": "x" * 600}, "environment.BIG: 600 .* 512"),
    "environment name": ({"environment.1A": "x"}, "environment.1A: "),
    "spot that never resumes": ({"spot.enabled": True, "hyperparameters.resume": "never"}, "would begin there again"),
    "secret": ({"environment.HF_TOKEN": "hf_" + "a" * 34}, "HF_TOKEN: looks like a secret"),
    "secret in an address": (
        {"environment.PIP_INDEX_URL": "https://me:secret@a.example/"},
        "PIP_INDEX_URL: looks like",
    ),
    "secret store without a name": ({"hub_token_secret": "ssm:"}, 'hub_token_secret: "ssm:" names no secret'),
    "token where its secret's name belongs": (
        {"hub_token_secret": "hf_" + "a" * 34},
        "hub_token_secret: looks like a secret.*; .*give the name of that secret here",
    ),
    "secret in a table": ({"estimator.a": {"b": {"api_key": "s3cr3t-s3cr3t"}}}, "estimator.a.b.api_key: looks like"),
    "hyperparameter of 2501": ({"hyperparameters.dataset": "x" * 2500}, "hyperparameters.dataset: 2502 .* 2500"),
    "keep-alive": ({"keep_alive_s": 21_601}, "keep_alive_s: 21601, and AWS allows 21600"),
    "29 days": ({"max_run_s": 29 * 86_400}, "max_run_s: "),
    "no such instance": ({"instance_type": "ml.p4d.24xlagre"}, "did you mean ml.p4d.24xlarge.*--accept instance_type"),
    "instance in capitals": ({"instance_type": "ML.G5.12XLARGE"}, "instance_type: .*; did you mean ml.g5.12xlarge?"),
    "unlike any parameter": ({"estimator.zzzzzz": 3}, "estimator.zzzzzz: .*; known are .*, …$"),
    "no such region": ({"region": "us-eats-1"}, "did you mean us-east-1"),
    "no such image": ({"image": "curent"}, "did you mean current"),
    "image elsewhere": ({"image": f"{ECR.replace('us-east', 'eu-west')}/x:1"}, "image: it is in eu-west-1"),
    "image of Docker Hub": ({"image": "docker.io/pytorch/pytorch:2.13"}, "image: .* is not in Amazon ECR"),
    "CPU image on p4d": (
        {"region": "us-east-1", "image": f"{ECR}/pytorch:2.13-cpu-amzn2023-sagemaker"},
        "image: its tag says CPU",
    ),
    "image without SMDDP": ({"distribution": "smddp", "image": "current"}, 'image: .* set image = "smddp"'),
    "two hosts, no launcher": ({"distribution": "none"}, "rank 0"),
    "idle GPUs": (
        {"distribution": "none", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
        "7 of 8 paid GPUs would idle",
    ),
    "mpirun without GPUs": ({"distribution": "pytorchddp", "instance_type": "ml.m5.xlarge"}, "needs GPUs"),
    "Trainium": ({"instance_type": "ml.trn1.2xlarge"}, "do not run on ml.trn1"),
    "V100 under CUDA 13": ({"instance_type": "ml.p3.2xlarge", "instance_count": 1}, "does not support the GPUs of p3"),
    "100,000 instances": ({"instance_count": 100_000}, "instance_count: 100,000 instances; expected at most 1,000"),
    "subnets alone": ({"network.subnets": [SUBNET]}, "network: .*silently drops both"),
    "IDs swapped": (
        {"network.subnets": [GROUP], "network.security_groups": [SUBNET]},
        f'network.subnets: "{GROUP}" is not one\'s ID; as in subnet-',
    ),
    "channel with a hyphen": ({"channels.my-data": "s3://bucket/x"}, "channels.my-data: SM_CHANNEL_MY-DATA"),
    "channel not in S3": ({"channels.training": "/data"}, 'channels.training: "/data" is not an S3 address'),
    "channel that nobody reads": ({"channels.train": "s3://bucket/x"}, "channels.train: .*no option reads it"),
    "channel beside the demo's data": (
        {"channels.training": "s3://bucket/x"},
        'channels.training: .*no option reads it; set hyperparameters.dataset = "training", or remove it',
    ),
    "channel in another case": (
        {"channels.Training": "s3://bucket/x", "hyperparameters.dataset": "training"},
        "hyperparameters.dataset: .* no training to read; rename Training: case counts",
    ),
    "channels by case": (DATA | {"channels.Training": "s3://bucket/y"}, "channels.training: Training sets SM_CHANNEL_"),
    "channel's mistyped option": (
        DATA | {"channels.training": {"s3_data": "s3://bucket/x", "input_mod": "FastFile"}},
        "channels.training.input_mod: .*did you mean input_mode",
    ),
    "channel's unknown mode": (
        DATA | {"channels.training": {"s3_data": "s3://bucket/x", "input_mode": "FastFiles"}},
        'channels.training.InputMode: "FastFiles" is not known .*did you mean FastFile',
    ),
    "file system without VPC": (DATA | {"channels.training": FSX}, "channels.training: a file system"),
    "no training channel": (
        {"hyperparameters.dataset": "training"},
        r"hyperparameters.dataset: \[channels\] has no training",
    ),
    "path of no channel": (
        {"hyperparameters.dataset": "/opt/ml/input/data/words/x.csv"},
        r"hyperparameters.dataset: \[channels\] has no words",
    ),
    "checkpoints in a bucket's root": ({"checkpoint_s3": "s3://bucket/"}, "checkpoint_s3: s3://bucket/ is a whole"),
    "checkpoints at the channel": (DATA | {"checkpoint_s3": "s3://bucket/data"}, "checkpoint_s3: it and channels.tr"),
    "checkpoints below the channel": (DATA | {"checkpoint_s3": "s3://bucket/data/c"}, "checkpoint_s3: it and channels"),
    "MLflow without its client": (
        {"mlflow": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/t"},
        "mlflow: the container has no client for it; add sagemaker-mlflow",
    ),
    "MLflow by name": ({"mlflow": "my-server"}, 'mlflow: "my-server" names no server'),
    "bucket among the tags": (
        {"tags.bucket": "b"},
        r"tags.bucket: bucket stands in \[tags\] .*; set it above the first",
    ),
    "role among the variables": ({"environment.role": "r"}, r"environment.role: role stands in \[environment\]"),
    "option among the variables": (
        {"environment.epochs": "3"},
        r"environment.epochs: .*; set it in \[hyperparameters\], or pass --accept",
    ),
    "parameter among the options": (
        {"hyperparameters.max_retry_attempts": 2},
        r"attempts: .*; set it in \[estimator\]",
    ),
    "tag of AWS": ({"tags.aws:x": "1"}, "tags.aws:x: AWS keeps tags"),
    "tag with a bracket": ({"tags.x": "a[b"}, r'tags.x.*: "a\[b" does not match .*; take out .\[.$'),
    "role": ({"role": "arn:aws:iam::12:role/x"}, "role: "),
    "role of another partition": (
        {"region": "cn-north-1", "role": ROLE},
        f'role: "{ROLE}" is of partition aws, and cn-north-1 is in aws-cn',
    ),
    "key of another partition": (
        {"estimator.output_kms_key": "arn:aws-cn:kms:cn-north-1:1:key/x"},
        "estimator.output_kms_key: .* is of partition aws-cn",
    ),
    "key of another region": (
        {"estimator.output_kms_key": "arn:aws:kms:eu-west-1:123456789012:key/x"},
        "estimator.output_kms_key: .* is in eu-west-1, and the job in us-east-1",
    ),
    "key for NVMe disks": (
        {"estimator.volume_kms_key": "1234abcd-12ab-34cd-56ef-1234567890ab"},
        "estimator.volume_kms_key: ml.p4d.24xlarge encrypts its own NVMe disks",
    ),
    "alias of the disk's key": (
        {"instance_type": "ml.c5.xlarge", "instance_count": 1, "estimator.volume_kms_key": "alias/x"},
        'estimator.volume_kms_key: "alias/x" is an alias',
    ),
    "pipe": ({"estimator.input_mode": "Pipe"}, "estimator.input_mode: a pipe holds no files"),
    "channel in parts": (
        DATA | {"channels.training": {"s3_data": "s3://bucket/x", "distribution": "ShardedByS3Key"}},
        "channels.training.distribution: each host would get a part",
    ),
    "checkpoints elsewhere": ({"estimator.checkpoint_local_path": "/tmp"}, "estimator.checkpoint_local_path: training"),  # noqa: S108
    "output not in S3": ({"estimator.output_path": "team/x"}, 'estimator.output_path: "team/x" is not an S3 address'),
    "code not in S3": ({"estimator.code_location": "https://x"}, 'estimator.code_location: "https://x" is not an S3'),
    "bucket": ({"bucket": "s3://bucket"}, "bucket: "),
    "mistyped parameter": ({"estimator.max_retries": 3}, "estimator.max_retries: .*did you mean max_retry_attempts"),
    "parameter of its own": ({"estimator.volume_size": 3}, "estimator.volume_size: .*; set volume_gb"),
    "code of others": ({"estimator.git_config": {"repo": "x"}}, "estimator.git_config: "),
    "31 retries": ({"estimator.max_retry_attempts": 31}, "estimator.max_retry_attempts: 31, and AWS allows 30; low"),
    "retries as text": ({"estimator.max_retry_attempts": "3"}, "estimator.max_retry_attempts: '3' is not a int"),
    "isolated, with pip": ({"estimator.enable_network_isolation": True}, "estimator.enable_network_isolation: an isol"),
    **{
        f"{name} in the environment": ({f"environment.{name}": "0"}, f"environment.{name}: the launcher or SageMaker")
        for name in ("RANK", "SM_MODEL_DIR", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
    },
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_preflight_refuses(tmp_path, mistake):
    """Each in its own line, offline; with `--accept KEY` that line is a warning."""
    changes, line = BROKEN[mistake]
    found, _ = preflight.offline_checks(job.load(edited(tmp_path / "job.toml", changes)))
    errors = [str(finding) for finding in found if finding.level == "error"]
    assert any(re.search(line, error) for error in errors), errors
    assert all(re.match(r"error   [\w./\[\]: -]+: .+; .+", error) for error in errors), errors
    assert not findings.refused(findings.ordered(found, [finding.key for finding in found]))


def test_a_tag_may_have_an_options_name(good):
    found = preflight.misplaced(replace(good, tags={"epochs": "3", "environment": "prod", "max_run_s": "60"}))
    levels = {each.key: each.level for each in found}
    assert levels == {"tags.epochs": "warning", "tags.environment": "warning", "tags.max_run_s": "error"}


def test_what_may_be_refused_wrongly_is_accepted_by_name(tmp_path, capsys):
    path = edited(tmp_path / "job.toml", {"instance_type": "ml.g99.xlarge", "tags.name": "team", "tags.role": "x"})
    command = ["submit", "--dry-run", "--job", str(path), "--accept", "instance_type"]
    assert main(command) == 1  # nothing that preflight refuses is sent
    said = capsys.readouterr()
    assert "error   tags.name" in said.err and not said.out
    assert main([*command, "--accept", "tags.name", "--accept", "tags.role", "--accept", "tags.nmae"]) == 0
    said = capsys.readouterr()
    assert "warning tags.nmae: --accept names no error; remove it" in said.err
    assert json.loads(said.out)["ResourceConfig"]["InstanceType"] == "ml.g99.xlarge"


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"output_kms_key": "alias/k", "volume_kms_key": "1a-2b"}, "OutputDataConfig.KmsKeyId", "alias/k"),
        ({"volume_kms_key": "1a-2b"}, "ResourceConfig.VolumeKmsKeyId", "1a-2b"),
        ({"input_mode": "FastFile"}, "AlgorithmSpecification.TrainingInputMode", "FastFile"),
        ({"max_retry_attempts": 3}, "RetryStrategy.MaximumRetryAttempts", 3),
        ({"enable_remote_debug": True}, "RemoteDebugConfig.EnableRemoteDebug", True),
        ({"output_path": "s3://team-bucket/nlp/"}, "OutputDataConfig.S3OutputPath", "s3://team-bucket/nlp/"),
        (
            {"training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p"},
            "ResourceConfig.TrainingPlanArn",
            "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p",
        ),
    ],
)
def test_what_job_toml_has_no_key_for_goes_through_estimator(good, changes, path, value):
    found, made = preflight.offline_checks(
        replace(good, instance_type="ml.p3.16xlarge", image="smddp", distribution="pytorchddp", estimator=changes)
    )
    assert not findings.refused(found), found
    for part in path.split("."):
        made = made[part]
    assert made == value


def test_what_sdk_v3_lacks_is_said_to_be_its_own_lack(good, monkeypatch):
    monkeypatch.setattr("launch.v3.installed", lambda: True)
    (found,) = preflight.sdk_parameters(replace(good, estimator={"model_uri": "s3://bucket/x", "output_kms_key": "k"}))
    assert "estimator.model_uri: [estimator] cannot hold it: SDK v3, which is installed here" in str(found)


def test_mlflow_is_told_to_the_container(good, tmp_path, monkeypatch):
    (tmp_path / "requirements.txt").write_text("torchmetrics\nsagemaker-mlflow==0.5\n")
    monkeypatch.setattr(requirements, "FILE", tmp_path / "requirements.txt")
    server = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1"
    found, made = preflight.offline_checks(replace(good, mlflow=server, environment={}))
    assert not findings.refused(found), found
    assert made["Environment"] == {"MLFLOW_TRACKING_URI": server, "MLFLOW_EXPERIMENT_NAME": "language-id"}
    own = request.environment(replace(good, mlflow=server, environment={"MLFLOW_EXPERIMENT_NAME": "mine"}))
    assert own["MLFLOW_EXPERIMENT_NAME"] == "mine"


def test_a_folder_of_a_bucket_holds_all_of_a_job(good):
    made = request.dry_run(replace(good, estimator={"output_path": "s3://team-bucket/nlp/"}))
    name = made["TrainingJobName"]
    assert made["CheckpointConfig"]["S3Uri"] == f"s3://team-bucket/nlp/{name}/checkpoints"
    assert f"s3://team-bucket/nlp/{name}/source" in made["HyperParameters"]["sagemaker_submit_directory"]


def test_a_channel_may_be_streamed_or_a_file_system(good):
    data = {"s3_data": "s3://bucket/x/", "input_mode": "FastFile", "s3_data_type": "ManifestFile"}
    wanted = replace(good, hyperparameters={"dataset": "training"}, channels={"training": data}, network=NETWORK)
    assert not any(line.startswith("error") for line in offline(wanted))
    (channel,) = request.dry_run(wanted)["InputDataConfig"]
    assert channel["InputMode"] == "FastFile"
    assert channel["DataSource"]["S3DataSource"]["S3DataType"] == "ManifestFile"
    wanted = replace(wanted, channels={"training": FSX})
    assert not any(line.startswith("error") for line in offline(wanted))
    (channel,) = request.dry_run(wanted)["InputDataConfig"]
    assert channel["DataSource"]["FileSystemDataSource"]["FileSystemId"] == FSX["file_system_id"]


def test_the_sdks_own_configuration_file_is_judged_with_the_job(good, tmp_path, monkeypatch):
    """An organisation's defaults reach the request, and so preflight."""
    config = tmp_path / "config.yaml"
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(config))
    training = {"RoleArn": ROLE, "VpcConfig": {"Subnets": [SUBNET], "SecurityGroupIds": [GROUP]}}
    training["EnableInterContainerTrafficEncryption"] = True
    bucket = {"PythonSDK": {"Modules": {"Session": {"DefaultS3Bucket": "of-the-organisation"}}}}
    config.write_text(json.dumps({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": training, **bucket}}))
    found, made = preflight.offline_checks(replace(good, role=""))
    assert made["RoleArn"] == ROLE and made["VpcConfig"]["Subnets"] == [SUBNET] and not findings.refused(found)
    assert made["OutputDataConfig"]["S3OutputPath"] == "s3://of-the-organisation/"
    assert made["EnableInterContainerTrafficEncryption"]
    training["Environment"] = {"RANK": "0"}
    config.write_text(json.dumps({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": training}}))
    assert any("environment.RANK" in line for line in offline(replace(good, environment={})))
    config.write_text("a: [")
    assert any(line.startswith("error   job.toml: the SageMaker SDK cannot build") for line in offline(good))


def test_an_option_that_torchrun_would_take_for_its_own(good, monkeypatch):
    """Python 3.11's argparse, which the smddp image has, ends there; the newest image's does not."""
    new = dataclasses.make_dataclass("New", [("num", int, option(3, "a number"))], frozen=True)
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    wanted = replace(good, distribution="torch_distributed", hyperparameters={"num": 4})
    found = [str(f) for image in ("smddp", "current") for f in preflight.hyperparameters(replace(wanted, image=image))]
    assert [line[:58] for line in found] == ["error   hyperparameters.num: torchrun on Python 3.11 takes"]


def test_torchruns_options_are_all_known():
    from torch.distributed.run import get_args_parser

    long = {name[2:].replace("-", "_") for action in get_args_parser()._actions for name in action.option_strings}
    assert {name for name in long if len(name) > 1} - {"help", "elp", "local_rank"} <= set(profiles.TORCHRUN)


KEYS = st.one_of(
    st.sampled_from([*job.KEYS, "enabled", "subnets", "dataset", "training", "max_retry_attempts"]), st.text()
)
SCALARS = st.one_of(
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.datetimes(),
    st.just("huge"),
    st.just("s3://b"),
)
TABLES = st.dictionaries(KEYS, st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))


def enlarged(value: Any) -> Any:
    """With a number of 4,800 digits where it says huge: Python writes none of these, so Hypothesis cannot draw it."""
    if isinstance(value, dict):
        return {key: enlarged(item) for key, item in value.items()}
    if isinstance(value, list):
        return [enlarged(item) for item in value]
    return 16**4000 if value == "huge" else value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=TABLES)
def test_no_job_toml_gives_a_stack_trace(changes, monkeypatch, good):
    """Whatever TOML holds: every problem in a sentence, or a job, which preflight then judges in sentences."""
    base = {"name": "x", "region": "us-east-1", "instance_type": "ml.m5.xlarge", "instance_count": 1}
    monkeypatch.setattr("tomllib.loads", lambda _: base | enlarged(changes))
    try:
        made = job.load(ROOT / "job.toml")
    except job.JobError as error:
        assert all(str(error).split("\n"))
        return
    for finding in preflight.offline_checks(made)[0]:
        assert finding.problem and finding.cure and "\n" not in str(finding)


@settings(max_examples=25, deadline=None)
@given(
    texts=st.fixed_dictionaries(
        {}, optional={key: st.text(max_size=70) for key in ("role", "bucket", "name", "image")}
    ),
    tables=st.fixed_dictionaries(
        {},
        optional={key: st.dictionaries(st.text(max_size=9), st.text(max_size=600)) for key in ("environment", "tags")}
        | {
            "channels": st.dictionaries(
                st.text(max_size=9), st.text(max_size=40) | st.dictionaries(st.text(), st.text())
            )
        }
        | {"hyperparameters": st.dictionaries(KEYS, st.text() | st.integers() | st.floats() | st.booleans())}
        | {
            "estimator": st.dictionaries(st.sampled_from(["input_mode", "rules", "dependencies", "model_uri"]), SCALARS)
        },
    ),
)
def test_no_values_of_the_right_type_give_a_stack_trace(texts, tables):
    wanted = Job(
        **({"name": "x", "region": "us-east-1", "instance_type": "ml.m5.xlarge", "instance_count": 1} | texts | tables)
    )
    assert all(str(finding) for finding in preflight.offline_checks(wanted)[0])


def test_a_new_option_is_known_at_once(good, monkeypatch):
    new = dataclasses.make_dataclass("New", [("smoothing", Ratio, option(0.0, "label smoothing"))], frozen=True)
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    told = {0.1: None, 1.0: "expected a number from 0 to below 1", "x": "found 'x', expected a number"}
    for value, problem in told.items():
        found = list(preflight.hyperparameters(replace(good, hyperparameters={"smoothing": value})))
        assert problem in str(found[0]) if problem else not found
    (unknown,) = preflight.hyperparameters(replace(good, hyperparameters={"smothing": 0.1}))
    assert str(unknown).endswith("did you mean smoothing?")


def test_an_image_without_patches_is_said_and_its_alternative(good):
    before = list(preflight.image(replace(good, distribution="smddp"), today=date(2025, 10, 29)))
    after = list(preflight.image(replace(good, distribution="smddp"), today=date(2025, 10, 30)))
    assert not before
    assert [f.level for f in after] == ["warning"]
    assert "no security patches since 2025-10-29" in str(after[0]) and 'image = "current"' in str(after[0])


@pytest.mark.parametrize(
    ("value", "level", "cure"),
    [
        ("{folder}/here.csv", "error", "upload it to S3, name that under [channels], and the channel here"),
        ("./none", "warning", "upload it"),
        ("~/none", "warning", "upload it"),
        ("C:\\data", "warning", "upload it"),
        ("/data/none.CSV", "warning", "upload it"),
        ("s3://bucket/x.csv", "warning", "name it under [channels], and the channel here"),
        ("org/model", "", ""),
        ("bert-base-cased", "", ""),
        ("https://a.example/x.csv", "", ""),
        ("/opt/ml/model/x.pt", "", ""),
        ("/", "", ""),
        ("/tmp", "", ""),  # noqa: S108
    ],
)
def test_what_only_this_machine_has_is_said(good, tmp_path, monkeypatch, value, level, cure):
    """In job.toml, and as an option's default; folders for output are made where they are not."""
    (tmp_path / "here.csv").touch()
    value = value.replace("{folder}", str(tmp_path))
    new = dataclasses.make_dataclass("New", [("words", str, option(value, "their file", resume="data"))], frozen=True)
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    for key, more in {"words": {}, "dataset": {"dataset": value, "words": "cldr"}}.items():
        found = list(preflight.reading(replace(good, hyperparameters={"output_dir": str(tmp_path), **more})))
        assert [(each.level, each.key) for each in found] == ([(level, f"hyperparameters.{key}")] if level else [])
        assert not level or cure in str(found[0])
    (found,) = preflight.reading(replace(good, hyperparameters={"words": "cldr", "data_dir": f"{tmp_path}/here.csv"}))
    assert (found.level, found.key) == ("error", "hyperparameters.data_dir"), "a file is no folder for output"


def test_a_monitor_that_is_no_metric_is_warned_of(monkeypatch):
    monkeypatch.setattr("options.MONITOR", "val/los")
    (found,) = preflight.source()
    assert str(found).startswith("warning src/options.py: MONITOR, val/los, is not among METRICS; correct one of them")


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
    found = list(requirements.named(good, tmp_path / "requirements.txt"))
    assert not list(requirements.resolved(good, tmp_path / "requirements.txt"))  # once is enough
    assert [f.level for f in found] == ["error"] and "would replace" in str(found[0]) and line in str(found[0])


def test_cost_is_never_invented(good):
    assert "at most 2 instances × 24 h" in account.cost(good, offline=True)
    assert not re.search(r"\d USD|an hour", account.cost(good, offline=True))
    said = account.cost(replace(good, price_per_hour=2.0, keep_alive_s=1800))
    made_of = "2 instances × (24 h (max_run_s) + 0.5 h (keep_alive_s)) × 2 USD"
    assert said == f"cost    4.00 USD an hour, at most 98.00 USD: {made_of}"
    said = account.cost(replace(good, price_per_hour=2.0, tune=Tune(max_jobs=20, parallel=3)), tuning=True)
    assert "12.00 USD an hour, at most 1,920.00 USD: 20 jobs × 2 instances × 24 h" in said


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
        assert subprocess.run(profiles.FORWARDING).returncode == status
