"""A job that was sent, in moto: its log, its model, and a console to read from."""

import datetime
import io
import tarfile
from typing import Any

import boto3
import pytest
from moto.sagemaker.models import sagemaker_backends

from moto_account import ACCOUNT, REGION
from smlightning_sagemaker.job.aws import LOG_GROUP

NAME = "language-id-20260101-000000"


def train(aws: boto3.Session, name: str, image: str = "x", **members: Any) -> Any:
    """Create a job in moto, which calls it completed at once; moto's own object of it."""
    host = {"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 100}
    aws.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/training",
        AlgorithmSpecification={"TrainingImage": image, "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://language-id/"},
        ResourceConfig={**host, "InstanceCount": 2},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
        **members,
    )
    return sagemaker_backends[ACCOUNT][REGION].training_jobs[name]


@pytest.fixture
def sent(aws: boto3.Session) -> Any:
    """A job in moto, and its log group."""
    aws.client("logs").create_log_group(logGroupName=LOG_GROUP)
    checkpoints = {"S3Uri": "s3://language-id/checkpoints"}
    return train(aws, NAME, HyperParameters={"epochs": "6"}, CheckpointConfig=checkpoints)


def log(aws: boto3.Session, name: str, host: str, *lines: str, at: int = 0) -> None:
    logs, stream = aws.client("logs"), f"{name}/{host}-1700000000"
    known = logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=stream)[
        "logStreams"
    ]
    if not known:
        logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
    now = int(datetime.datetime.now().timestamp() * 1000) + at
    events = [{"timestamp": now + i, "message": line} for i, line in enumerate(lines)]
    logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)


def console() -> Any:
    from rich.console import Console

    return Console(
        file=io.StringIO(), highlight=False, markup=False, emoji=False, soft_wrap=True, width=200
    )


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar.gz of (name, type, content or link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            member.linkname = "" if kind == tarfile.REGTYPE else content.decode()
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def put(aws: boto3.Session, sent: Any, body: bytes, name: str = "model.tar.gz") -> None:
    aws.client("s3").put_object(
        Bucket="language-id", Key=f"{sent.training_job_name}/output/{name}", Body=body
    )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
