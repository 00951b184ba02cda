"""The mistakes that preflight finds in job.toml, the request and src/, and what a job costs."""

import dataclasses
import json
import re
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_job import GOOD, ROLE, edited

from options import OPTIONS
from smlightning import project as projects
from smlightning.__main__ import main
from smlightning.launch import findings, images, job, preflight, price, request, requirements
from smlightning.launch.job import Job, Network, Tune
from smlightning.launch.preflight import channels, source
from smlightning.launch.preflight import settings as single_values
from smlightning.launch.preflight.hyperparameters import hyperparameters
from smlightning.launch.preflight.image import patched
from smlightning.options import Ratio, option

NETWORK = Network(
    subnets=["subnet-0123456789abcdef0"], security_groups=["sg-0123456789abcdef0"], encrypt=True
)


@pytest.fixture
def good() -> Job:
    return GOOD


PROJECT = projects.find()


def offline(wanted: Job) -> list[str]:
    return [str(finding) for finding in preflight.offline_checks(wanted, PROJECT)[0]]


def test_the_projects_own_job_passes(tmp_path):
    found, made = preflight.offline_checks(
        job.load(edited(tmp_path / "job.toml", {}), PROJECT), PROJECT
    )
    assert made and not findings.refused(found)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"a = ", b'a = "\n"', b"[a]\n[a]", b"a = " + b"1" * 5000, b"a = " + b"[" * 5000],
)
def test_what_is_not_toml_is_said_in_a_sentence(tmp_path, content, capsys):
    (tmp_path / "job.toml").write_bytes(content)
    assert main(["submit", "--dry-run", "--job", str(tmp_path / "job.toml")]) == 1
    assert main(["submit", "--dry-run", "--job", str(tmp_path / "absent.toml")]) == 1
    said = capsys.readouterr()
    assert not said.out and len(said.err.splitlines()) == 2 and "Traceback" not in said.err


def test_a_dry_run_needs_no_credentials_and_prints_json_only(tmp_path, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    path = edited(tmp_path / "job.toml", {"role": "", "distribution": "torch_distributed"})
    assert main(["submit", "--dry-run", "--job", str(path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["RoleArn"] == "arn:aws:iam::000000000000:role/placeholder-for-dry-run"


ECR = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SUBNET, GROUP = "subnet-0123456789abcdef0", "sg-0123456789abcdef0"
DATA = {"channels.training": "s3://bucket/data/", "hyperparameters.dataset": "training"}
FSX = {
    "file_system_id": "fs-0123456789abcdef0",
    "file_system_type": "FSxLustre",
    "directory_path": "/fsx",
}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "SMDDP on g5": (
        {"distribution": "smddp", "instance_type": "ml.g5.12xlarge"},
        "SMDDP does not run on ml.g5.12xl",
    ),
    "SMDDP on p3dn": (
        {"distribution": "smddp", "instance_type": "ml.p3dn.24xlarge"},
        "SMDDP does not run on ml.p3dn",
    ),
    "SMDDP on p5": (
        {"distribution": "smddp", "instance_type": "ml.p5.48xlarge"},
        "SMDDP does not run on ml.p5.48xl",
    ),
    "mistyped hyperparameter": (
        {"hyperparameters.epoch": 3},
        "hyperparameters.epoch: .* did you mean epochs",
    ),
    "key among the hyperparameters": (
        {"hyperparameters.max_run_s": 60},
        "max_run_s: .*; set it above the first",
    ),
    "option among the parameters": (
        {"request.epochs": 3},
        "request.epochs: .*no such member",
    ),
    "channel that an option names, and no code reads": (
        {"channels.train": "s3://bucket/x", "hyperparameters.dataset": "train"},
        "channels.train: .*no option reads it; name it training",
    ),
    "second channel that nobody reads": (
        DATA | {"channels.more": "s3://bucket/x"},
        'channels.more: .*; give an option its folder, "/opt/ml/input/data/more", or remove it',
    ),
    "lr as a word": (
        {"hyperparameters.lr": "fast"},
        "hyperparameters.lr: found 'fast', expected a finite number",
    ),
    "lr below zero": (
        {"hyperparameters.lr": -1.0},
        "hyperparameters.lr: .*expected a finite number above 0",
    ),
    "max_wait below max_run": (
        {"spot.enabled": True, "spot.max_wait_s": 60},
        "spot.max_wait_s: 60 is below",
    ),
    "spot without checkpoints": (
        {"spot.enabled": True, "checkpoint_s3": ""},
        "checkpoint_s3: spot without",
    ),
    "spot kept alive": ({"spot.enabled": True, "keep_alive_s": 60}, "keep_alive_s: spot"),
    "name of 70": ({"name": "x" * 70}, "name: 86 characters, and AWS allows 63; .*at most 47"),
    "name with _": ({"name": "a_b"}, "name: "),
    "environment value of 600": ({"environment.BIG": "x" * 600}, "environment.BIG: 600 .* 512"),
    "environment name": ({"environment.1A": "x"}, "environment.1A: "),
    "spot that never resumes": (
        {"spot.enabled": True, "hyperparameters.resume": "never"},
        "would begin there again",
    ),
    "secret": ({"environment.HF_TOKEN": "hf_" + "a" * 34}, "HF_TOKEN: looks like a secret"),
    "secret in an address": (
        {"environment.PIP_INDEX_URL": "https://me:secret@a.example/"},
        "PIP_INDEX_URL: looks like",
    ),
    "secret store without a name": (
        {"hub_token_secret": "ssm:"},
        'hub_token_secret: "ssm:" names no secret',
    ),
    "token where its secret's name belongs": (
        {"hub_token_secret": "hf_" + "a" * 34},
        "hub_token_secret: looks like a secret.*; .*give the name of that secret here",
    ),
    "secret in a table": (
        {"request.a": {"b": {"api_key": "s3cr3t-s3cr3t"}}},
        "request.a.b.api_key: looks like",
    ),
    "hyperparameter of 2501": (
        {"hyperparameters.dataset": "x" * 2500},
        "hyperparameters.dataset: 2502 .* 2500",
    ),
    "keep-alive": ({"keep_alive_s": 21_601}, "keep_alive_s: 21601, and AWS allows 21600"),
    "29 days": ({"max_run_s": 29 * 86_400}, "max_run_s: "),
    "no such instance": (
        {"instance_type": "ml.p4d.24xlagre"},
        "did you mean ml.p4d.24xlarge.*--accept instance_type",
    ),
    "instance in capitals": (
        {"instance_type": "ML.G5.12XLARGE"},
        "instance_type: .*; did you mean ml.g5.12xlarge?",
    ),
    "unlike any parameter": ({"request.zzzzzz": 3}, "request.zzzzzz: .*; known are .*, …$"),
    "no such region": ({"region": "us-eats-1"}, "did you mean us-east-1"),
    "no such image": ({"image": "curent"}, "did you mean current"),
    "image elsewhere": (
        {"image": f"{ECR.replace('us-east', 'eu-west')}/x:1"},
        "image: it is in eu-west-1",
    ),
    "image of Docker Hub": (
        {"image": "docker.io/pytorch/pytorch:2.13"},
        "image: .* is not in Amazon ECR",
    ),
    "CPU image on p4d": (
        {"region": "us-east-1", "image": f"{ECR}/pytorch:2.13-cpu-amzn2023-sagemaker"},
        "image: its tag says CPU",
    ),
    "image without SMDDP": (
        {"distribution": "smddp", "image": "current"},
        'image: .* set image = "smddp"',
    ),
    "two hosts, no launcher": ({"distribution": "none"}, "rank 0"),
    "idle GPUs": (
        {"distribution": "none", "instance_type": "ml.p4d.24xlarge", "instance_count": 1},
        "7 of 8 paid GPUs would idle",
    ),
    "mpirun without GPUs": (
        {"distribution": "pytorchddp", "instance_type": "ml.m5.xlarge"},
        "needs GPUs",
    ),
    "Trainium": ({"instance_type": "ml.trn1.2xlarge"}, "do not run on ml.trn1"),
    "V100 under CUDA 13": (
        {"instance_type": "ml.p3.2xlarge", "instance_count": 1},
        "does not support the GPUs of p3",
    ),
    "100,000 instances": (
        {"instance_count": 100_000},
        "instance_count: 100,000 instances; expected at most 1,000",
    ),
    "subnets alone": ({"network.subnets": [SUBNET]}, "network: found subnets"),
    "IDs swapped": (
        {"network.subnets": [GROUP], "network.security_groups": [SUBNET]},
        f'network.subnets: "{GROUP}" is not one\'s ID; as in subnet-',
    ),
    "channel with a hyphen": (
        {"channels.my-data": "s3://bucket/x"},
        "channels.my-data: SM_CHANNEL_MY-DATA",
    ),
    "channel not in S3": (
        {"channels.training": "/data"},
        'channels.training: "/data" is not an S3 address',
    ),
    "channel that nobody reads": (
        {"channels.train": "s3://bucket/x"},
        "channels.train: .*no option reads it",
    ),
    "channel beside the demo's data": (
        {"channels.training": "s3://bucket/x"},
        'channels.training: .*set hyperparameters.dataset = "training"',
    ),
    "channel in another case": (
        {"channels.Training": "s3://bucket/x", "hyperparameters.dataset": "training"},
        "hyperparameters.dataset: .* no training to read; rename Training: case counts",
    ),
    "channels by case": (
        DATA | {"channels.Training": "s3://bucket/y"},
        "channels.training: Training sets SM_CHANNEL_",
    ),
    "channel's mistyped option": (
        DATA | {"channels.training": {"s3_data": "s3://bucket/x", "input_mod": "FastFile"}},
        "channels.training.input_mod: .*did you mean input_mode",
    ),
    "channel's unknown mode": (
        DATA | {"channels.training": {"s3_data": "s3://bucket/x", "input_mode": "FastFiles"}},
        'channels.training.InputMode: "FastFiles" is not known .*did you mean FastFile',
    ),
    "file system without VPC": (
        DATA | {"channels.training": FSX},
        "channels.training: a file system",
    ),
    "no training channel": (
        {"hyperparameters.dataset": "training"},
        r"hyperparameters.dataset: \[channels\] has no training",
    ),
    "path of no channel": (
        {"hyperparameters.dataset": "/opt/ml/input/data/words/x.csv"},
        r"hyperparameters.dataset: \[channels\] has no words",
    ),
    "checkpoints in a bucket's root": (
        {"checkpoint_s3": "s3://bucket/"},
        "checkpoint_s3: s3://bucket/ is a whole",
    ),
    "checkpoints at the channel": (
        DATA | {"checkpoint_s3": "s3://bucket/data"},
        "checkpoint_s3: it and channels.tr",
    ),
    "checkpoints below the channel": (
        DATA | {"checkpoint_s3": "s3://bucket/data/c"},
        "checkpoint_s3: it and channels",
    ),
    "MLflow without its client": (
        {"mlflow": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/t"},
        "mlflow: the container has no client for it; add sagemaker-mlflow",
    ),
    "MLflow by name": ({"mlflow": "my-server"}, 'mlflow: "my-server" names no server'),
    "bucket among the tags": (
        {"tags.bucket": "b"},
        r"tags.bucket: bucket stands in \[tags\] .*; set it above the first",
    ),
    "role among the variables": (
        {"environment.role": "r"},
        r"environment.role: role stands in \[environment\]",
    ),
    "option among the variables": (
        {"environment.epochs": "3"},
        r"environment.epochs: .*; set it in \[hyperparameters\], or pass --accept",
    ),
    "parameter among the options": (
        {"hyperparameters.max_retry_attempts": 2},
        r"attempts: .*; write it below \[request\], as RetryStrategy.Max",
    ),
    "tag of AWS": ({"tags.aws:x": "1"}, "tags.aws:x: AWS keeps tags"),
    "tag with a bracket": (
        {"tags.x": "a[b"},
        r'tags.x.*: "a\[b" does not match .*; take out .\[.$',
    ),
    "role": ({"role": "arn:aws:iam::12:role/x"}, "role: "),
    "role of another partition": (
        {"region": "cn-north-1", "role": ROLE},
        f'role: "{ROLE}" is of partition aws, and cn-north-1 is in aws-cn',
    ),
    "key of another partition": (
        {"request.OutputDataConfig": {"KmsKeyId": "arn:aws-cn:kms:cn-north-1:1:key/x"}},
        "request.OutputDataConfig.KmsKeyId: .* is of partition aws-cn",
    ),
    "key of another region": (
        {"request.OutputDataConfig": {"KmsKeyId": "arn:aws:kms:eu-west-1:123456789012:key/x"}},
        "request.OutputDataConfig.KmsKeyId: .* is in eu-west-1, and the job in us-east-1",
    ),
    "key for NVMe disks": (
        {"request.ResourceConfig": {"VolumeKmsKeyId": "1234abcd-12ab-34cd-56ef-1234567890ab"}},
        "request.ResourceConfig.VolumeKmsKeyId: ml.p4d.24xlarge encrypts its own NVMe disks",
    ),
    "alias of the disk's key": (
        {
            "instance_type": "ml.c5.xlarge",
            "instance_count": 1,
            "request.ResourceConfig": {"VolumeKmsKeyId": "alias/x"},
        },
        'request.ResourceConfig.VolumeKmsKeyId: "alias/x" is an alias',
    ),
    "pipe": (
        {"request.AlgorithmSpecification": {"TrainingInputMode": "Pipe"}},
        "request.AlgorithmSpecification.TrainingInputMode: a pipe holds no files",
    ),
    "channel in parts": (
        DATA
        | {"channels.training": {"s3_data": "s3://bucket/x", "distribution": "ShardedByS3Key"}},
        "channels.training.distribution: each host would get a part",
    ),
    "checkpoints elsewhere": (
        {"request.CheckpointConfig": {"LocalPath": "/elsewhere"}},
        "request.CheckpointConfig.LocalPath: training",
    ),
    "output not in S3": (
        {"request.OutputDataConfig": {"S3OutputPath": "team/x"}},
        'request.OutputDataConfig.S3OutputPath: "team/x" is not an S3 address',
    ),
    "bucket": ({"bucket": "s3://bucket"}, "bucket: "),
    "mistyped parameter": (
        {"request.RetryStrateg": {"MaximumRetryAttempts": 3}},
        "request.RetryStrateg: .*did you mean RetryStrategy",
    ),
    "31 retries": (
        {"request.RetryStrategy": {"MaximumRetryAttempts": 31}},
        "request.RetryStrategy.MaximumRetryAttempts: 31, and AWS allows 30; low",
    ),
    "retries as text": (
        {"request.RetryStrategy": {"MaximumRetryAttempts": "3"}},
        "request.RetryStrategy.MaximumRetryAttempts: '3' is not a integer",
    ),
    "isolated, with pip": (
        {"request.EnableNetworkIsolation": True},
        "request.EnableNetworkIsolation: an isol",
    ),
    **{
        f"{name} in the environment": (
            {f"environment.{name}": "0"},
            f"environment.{name}: the launcher or SageMaker",
        )
        for name in (
            "RANK",
            "SM_MODEL_DIR",
            "TORCHELASTIC_RUN_ID",
            "CUDA_VISIBLE_DEVICES",
            "PYTHONPATH",
        )
    },
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_preflight_refuses(tmp_path, mistake):
    """Each in its own line, offline; with `--accept KEY` that line is a warning."""
    changes, line = BROKEN[mistake]
    found, _ = preflight.offline_checks(
        job.load(edited(tmp_path / "job.toml", changes), PROJECT), PROJECT
    )
    errors = [str(finding) for finding in found if finding.level == "error"]
    assert any(re.search(line, error) for error in errors), errors
    assert all(re.match(r"error   [\w./\[\]: -]+: .+; .+", error) for error in errors), errors
    assert not findings.refused(findings.ordered(found, [finding.key for finding in found]))


def test_a_tag_may_have_an_options_name(good):
    found = single_values.misplaced(
        good.replace(tags={"epochs": "3", "environment": "prod", "max_run_s": "60"}), PROJECT
    )
    levels = {each.key: each.level for each in found}
    assert levels == {
        "tags.epochs": "warning",
        "tags.environment": "warning",
        "tags.max_run_s": "error",
    }


def test_what_may_be_refused_wrongly_is_accepted_by_name(tmp_path, capsys):
    path = edited(
        tmp_path / "job.toml",
        {"instance_type": "ml.g99.xlarge", "tags.name": "team", "tags.role": "x"},
    )
    command = ["submit", "--dry-run", "--job", str(path), "--accept", "instance_type"]
    assert main(command) == 1  # nothing that preflight refuses is sent
    said = capsys.readouterr()
    assert "error   tags.name" in said.err and not said.out
    assert (
        main([*command, "--accept", "tags.name", "--accept", "tags.role", "--accept", "tags.nmae"])
        == 0
    )
    said = capsys.readouterr()
    assert "warning tags.nmae: --accept names no error; remove it" in said.err
    assert json.loads(said.out)["ResourceConfig"]["InstanceType"] == "ml.g99.xlarge"


def test_mlflow_is_told_to_the_container(good, tmp_path, monkeypatch):
    (tmp_path / "requirements.txt").write_text("torchmetrics\nsagemaker-mlflow==0.5\n")
    monkeypatch.setattr(projects.Project, "requirements", tmp_path / "requirements.txt")
    server = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1"
    found, made = preflight.offline_checks(good.replace(mlflow=server, environment={}), PROJECT)
    assert not findings.refused(found), found
    assert made["Environment"] == {
        "MLFLOW_TRACKING_URI": server,
        "MLFLOW_EXPERIMENT_NAME": "language-id",
    }
    own = request.environment(
        good.replace(mlflow=server, environment={"MLFLOW_EXPERIMENT_NAME": "mine"})
    )
    assert own["MLFLOW_EXPERIMENT_NAME"] == "mine"


def test_a_channel_may_be_streamed_or_a_file_system(good):
    data = {"s3_data": "s3://bucket/x/", "input_mode": "FastFile", "s3_data_type": "ManifestFile"}
    wanted = good.replace(
        hyperparameters={"dataset": "training"}, channels={"training": data}, network=NETWORK
    )
    assert not any(line.startswith("error") for line in offline(wanted))
    (channel,) = request.dry_run(wanted, PROJECT)["InputDataConfig"]
    assert channel["InputMode"] == "FastFile"
    assert channel["DataSource"]["S3DataSource"]["S3DataType"] == "ManifestFile"
    wanted = wanted.replace(channels={"training": FSX})
    assert not any(line.startswith("error") for line in offline(wanted))
    (channel,) = request.dry_run(wanted, PROJECT)["InputDataConfig"]
    assert channel["DataSource"]["FileSystemDataSource"]["FileSystemId"] == FSX["file_system_id"]


def test_the_sdks_own_configuration_file_is_judged_with_the_job(good, tmp_path, monkeypatch):
    """An organisation's defaults reach the request, and so preflight."""
    config = tmp_path / "config.yaml"
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(config))
    training = {"RoleArn": ROLE, "VpcConfig": {"Subnets": [SUBNET], "SecurityGroupIds": [GROUP]}}
    training["EnableInterContainerTrafficEncryption"] = True
    bucket = {"PythonSDK": {"Modules": {"Session": {"DefaultS3Bucket": "of-the-organisation"}}}}
    config.write_text(
        json.dumps({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": training, **bucket}})
    )
    found, made = preflight.offline_checks(good.replace(role=""), PROJECT)
    assert (
        made["RoleArn"] == ROLE
        and made["VpcConfig"]["Subnets"] == [SUBNET]
        and not findings.refused(found)
    )
    assert made["OutputDataConfig"]["S3OutputPath"] == "s3://of-the-organisation/"
    assert made["EnableInterContainerTrafficEncryption"]
    training["Environment"] = {"RANK": "0"}
    config.write_text(json.dumps({"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": training}}))
    assert any("environment.RANK" in line for line in offline(good.replace(environment={})))
    config.write_text("a: [")
    found, made = preflight.offline_checks(good, PROJECT)
    assert made is None
    assert any(str(config) in each.problem for each in found if each.level == "error")


def test_an_option_that_torchrun_would_take_for_its_own(good, monkeypatch):
    """Python 3.11's argparse, which the smddp image has, ends there; a newer one does not."""
    new = dataclasses.make_dataclass("New", [("num", int, option(3, "a number"))], frozen=True)
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    wanted = good.replace(distribution="torch_distributed", hyperparameters={"num": 4})
    found = [
        str(f)
        for image in ("smddp", "current")
        for f in hyperparameters(wanted.replace(image=image), PROJECT)
    ]
    assert [line[:58] for line in found] == [
        "error   hyperparameters.num: torchrun on Python 3.11 takes"
    ]


KEYS = st.one_of(
    st.sampled_from(
        [*job.PATHS, "enabled", "subnets", "dataset", "training", "max_retry_attempts"]
    ),
    st.text(),
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
TABLES = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))
)


def enlarged(value: Any) -> Any:
    """With 4,800 digits where it says huge: Python writes no such number, so none is drawn."""
    if isinstance(value, dict):
        return {key: enlarged(item) for key, item in value.items()}
    if isinstance(value, list):
        return [enlarged(item) for item in value]
    return 16**4000 if value == "huge" else value


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=TABLES)
def test_no_job_toml_gives_a_stack_trace(changes, monkeypatch, good):
    """Whatever TOML holds: every problem in a sentence, or a job, which preflight judges."""
    base = {
        "name": "x",
        "region": "us-east-1",
        "instance_type": "ml.m5.xlarge",
        "instance_count": 1,
    }
    monkeypatch.setattr("tomllib.loads", lambda _: base | enlarged(changes))
    try:
        made = job.load(PROJECT.job_file, PROJECT)
    except job.JobError as error:
        assert all(str(error).split("\n"))
        return
    for finding in preflight.offline_checks(made, PROJECT)[0]:
        assert finding.problem and finding.cure and "\n" not in str(finding)


@settings(max_examples=25, deadline=None)
@given(
    texts=st.fixed_dictionaries(
        {}, optional={key: st.text(max_size=70) for key in ("role", "bucket", "name", "image")}
    ),
    tables=st.fixed_dictionaries(
        {},
        optional={
            key: st.dictionaries(st.text(max_size=9), st.text(max_size=600))
            for key in ("environment", "tags")
        }
        | {
            "channels": st.dictionaries(
                st.text(max_size=9), st.text(max_size=40) | st.dictionaries(st.text(), st.text())
            )
        }
        | {
            "hyperparameters": st.dictionaries(
                KEYS, st.text() | st.integers() | st.floats() | st.booleans()
            )
        }
        | {
            "request": st.dictionaries(
                st.sampled_from(["RetryStrategy", "RoleArn", "Tags", "ResourceConfig"]), SCALARS
            )
        },
    ),
)
def test_no_values_of_the_right_type_give_a_stack_trace(texts, tables):
    wanted = Job(
        **(
            {
                "name": "x",
                "region": "us-east-1",
                "instance_type": "ml.m5.xlarge",
                "instance_count": 1,
            }
            | texts
            | tables
        )
    )
    assert all(str(finding) for finding in preflight.offline_checks(wanted, PROJECT)[0])


def test_a_new_option_is_known_at_once(good, monkeypatch):
    new = dataclasses.make_dataclass(
        "New", [("smoothing", Ratio, option(0.0, "label smoothing"))], frozen=True
    )
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    told = {
        0.1: None,
        1.0: "expected a number from 0 to below 1",
        "x": "found 'x', expected a number",
    }
    for value, problem in told.items():
        found = list(hyperparameters(good.replace(hyperparameters={"smoothing": value}), PROJECT))
        assert problem in str(found[0]) if problem else not found
    (unknown,) = hyperparameters(good.replace(hyperparameters={"smothing": 0.1}), PROJECT)
    assert str(unknown).endswith("did you mean smoothing?")


def test_an_image_without_patches_is_said_and_its_alternative(good):
    before = list(patched(images.SMDDP, date(2025, 10, 29)))
    after = list(patched(images.SMDDP, date(2025, 10, 30)))
    assert not before
    assert [f.level for f in after] == ["warning"]
    assert "2025-10-29" in after[0].problem and 'image = "current"' in after[0].cure


@pytest.mark.parametrize(
    ("value", "level", "cure"),
    [
        (
            "{folder}/here.csv",
            "error",
            "upload it to S3, name that under [channels], and the channel here",
        ),
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
    new = dataclasses.make_dataclass(
        "New", [("words", str, option(value, "their file", resume="data"))], frozen=True
    )
    monkeypatch.setattr("options.OPTIONS", (*OPTIONS, new))
    for key, more in {"words": {}, "dataset": {"dataset": value, "words": "cldr"}}.items():
        options = {"output_dir": str(tmp_path), **more}
        found = list(channels.option_paths(good.replace(hyperparameters=options), PROJECT))
        assert [(each.level, each.key) for each in found] == (
            [(level, f"hyperparameters.{key}")] if level else []
        )
        assert not level or cure in str(found[0])
    options = {"words": "cldr", "data_dir": f"{tmp_path}/here.csv"}
    (found,) = channels.option_paths(good.replace(hyperparameters=options), PROJECT)
    assert (found.level, found.key) == ("error", "hyperparameters.data_dir"), (
        "a file is no folder for output"
    )


def test_a_monitor_that_is_no_metric_is_warned_of(good, monkeypatch):
    monkeypatch.setattr("options.MONITOR", "val/los")
    (found,) = source.monitor(good, PROJECT)
    assert (found.level, found.key) == ("warning", "src/options.py")
    assert "val/los" in found.problem


def test_source_folder(good, tmp_path):
    here, folder = projects.Project(tmp_path), tmp_path / "src"
    folder.mkdir()
    assert {f.key for f in source.files(good, here)} == {"src/train.py", "src/requirements.txt"}
    for name in ("train.py", "requirements.txt"):
        (folder / name).touch()
    assert not list(source.files(good, here))
    (folder / "train.csv").touch()
    (folder / ".env").touch()
    (folder / "keys.py").write_text("KEY = 'AKIAABCDEFGHIJKLMNOP'")
    (folder / "a.ipynb").write_text('{"cells": [{"outputs": [{"output_type": "stream"}]}]}')
    (folder / "link.py").symlink_to(tmp_path / "elsewhere")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.zip").touch()
    (folder / "b.ipynb").write_text(
        '{"cells": [{"outputs": [{"output_type": "stream"}]}]}' + " " * 3_000_000
    )
    (folder / "big.bin").write_bytes(b"\0" * (51 * 2**20))
    found = {f.key for f in source.files(good, here)}
    assert found == {
        "src/train.csv",
        "src/.env",
        "src/keys.py",
        "src/a.ipynb",
        "src/b.ipynb",
        "src/link.py",
        "src/",
    }


@pytest.mark.parametrize(
    "line", ["torch", "torch==2.13.0", "torch [x] >2", "Triton", "nvidia_nccl_cu12", "torchvision"]
)
def test_requirements_that_name_torch(good, tmp_path, line):
    here = projects.Project(tmp_path)
    here.src.mkdir()
    here.requirements.write_text(f"# torch stays\ntorchmetrics\n{line}\n")
    (found,) = requirements.named(good, here)
    assert not list(requirements.resolved(good, here))  # once is enough
    assert (found.level, found.key) == ("error", "src/requirements.txt")
    assert f'"{line}"' in found.problem


def test_cost_is_never_invented(good):
    assert "at most 2 instances × 24 h" in price.cost(good, offline=True)
    assert not re.search(r"\d USD|an hour", price.cost(good, offline=True))
    said = price.cost(good.replace(price_per_hour=2.0, keep_alive_s=1800))
    made_of = "2 instances × (24 h (max_run_s) + 0.5 h (keep_alive_s)) × 2 USD"
    assert said == f"cost    4.00 USD an hour, at most 98.00 USD: {made_of}"
    said = price.cost(
        good.replace(price_per_hour=2.0, tune=Tune(max_jobs=20, parallel=3)), tuning=True
    )
    assert "12.00 USD an hour, at most 1,920.00 USD: 20 jobs × 2 instances × 24 h" in said
