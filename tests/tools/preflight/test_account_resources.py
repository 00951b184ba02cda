"""Preflight finds the resources of a job in the account: data, image, file system, key, secret."""

from collections.abc import Callable
from typing import Any

import boto3
import botocore.session
import pytest

from moto_account import ACCOUNT, REGION, findings, record, refusal
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.job import Channel, Job
from smlightning_sagemaker.preflight.account import named

pytest_plugins = "moto_account"
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
LUSTRE = {
    "file_system_id": "fs-0123456789abcdef0",
    "file_system_type": "FSxLustre",
    "directory_path": "/fsx/data",
}
Change = Callable[[boto3.Session, Job], Job]


def put(aws: boto3.Session, name: str, **more: Any) -> None:
    aws.client("s3").put_object(Bucket="language-id", Key=name, Body=b"text", **more)


def of_training(job: Job, channel: Channel) -> Job:
    options = {**job.hyperparameters, "dataset": "training"}
    return job.replace(channels={"training": channel}, hyperparameters=options)


def test_an_address_that_matches_another_folder_is_a_warning(aws, good):
    put(aws, "train/a.csv")
    job = of_training(good, "s3://language-id/train")
    assert findings(job) == []
    put(aws, "train_old/a.csv")
    (finding,) = findings(job)
    assert finding.level == "warning" and "train_old" in finding.problem
    assert '"s3://language-id/train/"' in finding.cure
    assert findings(of_training(good, "s3://language-id/train/")) == []


def test_an_empty_folder_to_resume_from_is_a_warning(aws, good):
    job = good.replace(checkpoint_s3="s3://language-id/runs/frist/")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("checkpoint_s3", "warning")
    put(aws, "runs/frist/last.ckpt")
    assert findings(job) == []


def test_an_image_that_a_mirror_lacks_is_a_warning(aws, good):
    """A pull-through cache gets it at the first pull; of an own image it is an error."""
    job = good.replace(image=f"{REGISTRY}/mirror/{images.CURRENT.gpu}")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("image", "warning")
    (finding,) = findings(good.replace(image=f"{REGISTRY}/mirror/mine:1"))
    assert (finding.key, finding.level) == ("image", "error")


def own_image(aws: boto3.Session, job: Job) -> Job:
    aws.client("ecr").create_repository(repositoryName="mine")
    return job.replace(image=f"{REGISTRY}/mine:7")


def elastic(aws: boto3.Session, job: Job) -> Job:
    return of_training(job, {**LUSTRE, "file_system_type": "EFS"})


def alias(aws: boto3.Session, job: Job) -> Job:
    return job.replace(request={"OutputDataConfig": {"KmsKeyId": "alias/team"}})


def disabled_key(aws: boto3.Session, job: Job) -> Job:
    kms = aws.client("kms")
    name = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.disable_key(KeyId=name)
    return job.replace(request={"OutputDataConfig": {"KmsKeyId": name}})


def secret(aws: boto3.Session, job: Job) -> Job:
    return job.replace(secrets={"WANDB_API_KEY": "team/wandb"})


def parameter(aws: boto3.Session, job: Job) -> Job:
    return job.replace(secrets={"WANDB_API_KEY": "ssm:/team/wandb"})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (own_image, "image"),
        (elastic, "channels.training"),
        (alias, "request.OutputDataConfig.KmsKeyId"),
        (disabled_key, "request.OutputDataConfig.KmsKeyId"),
        (secret, "secrets.WANDB_API_KEY"),
        (parameter, "secrets.WANDB_API_KEY"),
    ],
)
def test_a_missing_or_disabled_resource_is_an_error(aws, good, change: Change, key: str):
    (finding,) = [found for found in findings(change(aws, good)) if found.level == "error"]
    assert finding.key == key and finding.cure


@pytest.mark.parametrize(
    ("operation", "answer", "job_of", "levels"),
    [
        (
            "DescribeFileSystems",
            lambda state: {"FileSystems": [{"Lifecycle": state}]},
            lambda job: of_training(job, LUSTRE),
            {"AVAILABLE": "", "CREATING": "", "DELETING": "error"},
        ),
    ],
)
def test_a_resource_in_an_unusable_state_is_an_error(
    aws,
    good,
    monkeypatch,
    operation: str,
    answer: Callable[[str], dict[str, Any]],
    job_of: Callable[[Job], Job],
    levels: dict[str, str],
):
    """A state that passes by itself is none."""
    for state, level in levels.items():
        record(monkeypatch, **{operation: answer(state)})
        found = [each for each in findings(job_of(good)) if state in each.problem]
        assert [each.level for each in found] == [level] * bool(level), state


@pytest.mark.parametrize(
    ("operation", "change", "key"),
    [
        ("DescribeFileSystems", lambda job: of_training(job, LUSTRE), "channels.training"),
    ],
)
def test_a_missing_resource_is_an_error_and_a_denied_one_skipped(
    aws, good, monkeypatch, operation: str, change: Callable[[Job], Job], key: str
):
    """The answers are those of the services' documentation."""
    job = change(good)
    levels = {"FileSystemNotFound": "error", "AccessDeniedException": "skipped"}
    for code, level in levels.items():
        record(monkeypatch, **{operation: refusal(code, operation)})
        (finding,) = [found for found in findings(job) if found.level in levels.values()]
        assert (finding.key, finding.level) == (key, level)
    record(monkeypatch, **{operation: {}})
    assert not [found for found in findings(job) if found.level in levels.values()]


def states(kind: named.Kind) -> list[str]:
    """Every state that botocore's model of the service has; none where it is no enumeration."""
    model = botocore.session.get_session().get_service_model(kind.service)
    operation = "".join(part.title() for part in kind.operation.split("_"))
    shape = model.operation_model(operation).output_shape
    for member in kind.state.replace("[0]", "").split("."):
        shape = getattr(shape, "member", shape)
        shape = shape.members[member]
    return list(shape.enum)


WITH_STATES = [kind for kind in vars(named).values() if isinstance(kind, named.Kind) and kind.state]


@pytest.mark.parametrize("kind", WITH_STATES, ids=lambda kind: kind.operation)
def test_the_states_of_a_resource_are_those_of_awss_model(kind: named.Kind):
    if kind not in (named.SECRET, named.PARAMETER):  # which have no one state
        assert {*kind.unusable} < {*states(kind)}


def test_a_secret_that_is_to_be_deleted_is_an_error(aws, good):
    store = aws.client("secretsmanager")
    store.create_secret(Name="team/wandb", SecretString="x")
    job = secret(aws, good)
    assert findings(job) == []
    store.delete_secret(SecretId="team/wandb")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("secrets.WANDB_API_KEY", "error")
    store.restore_secret(SecretId="team/wandb")
    assert findings(job) == []


def test_a_path_in_fsx_begins_with_the_mount_name(aws, good, monkeypatch):
    """SDK pull request 4257: AWS chooses MountName."""
    job = of_training(good, LUSTRE)
    for mount, levels in (("fsx", []), ("abcdefgh", ["error"])):
        system = {"Lifecycle": "AVAILABLE", "LustreConfiguration": {"MountName": mount}}
        described = {"FileSystems": [system]}
        record(monkeypatch, DescribeFileSystems=described)
        assert [each.level for each in findings(job)] == levels
