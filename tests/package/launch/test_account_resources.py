"""What a job names in an account is looked up: data, image, file system, key, secret, server."""

from collections.abc import Callable
from typing import Any

import boto3
import botocore.client
import botocore.session
import pytest
from moto_account import ACCOUNT, REGION, record, refusal, simulated
from small_job import PROJECT

from smlightning.launch import account, images, request
from smlightning.launch.account import named
from smlightning.launch.findings import Finding
from smlightning.launch.job import Channel, Job, Network

pytest_plugins = "moto_account"
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
SERVER = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:mlflow-tracking-server/team"
PLAN = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-plan/large"
LUSTRE = {
    "file_system_id": "fs-0123456789abcdef0",
    "file_system_type": "FSxLustre",
    "directory_path": "/fsx/data",
}
Change = Callable[[boto3.Session, Job], Job]


def findings(job: Job) -> list[Finding]:
    return list(account.check(job, request.dry_run(job, PROJECT)))


def put(aws: boto3.Session, name: str, **more: Any) -> None:
    aws.client("s3").put_object(Bucket="language-id", Key=name, Body=b"text", **more)


def of_training(job: Job, channel: Channel) -> Job:
    options = {**job.hyperparameters, "dataset": "training"}
    return job.replace(channels={"training": channel}, hyperparameters=options)


def test_archived_data_is_an_error_until_it_is_restored(aws, good, monkeypatch):
    put(aws, "data/a.csv", StorageClass="DEEP_ARCHIVE")
    job = of_training(good, "s3://language-id/data/")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("channels.training", "error")
    assert "data/a.csv" in finding.problem
    item = {"Key": "data/a.csv", "Size": 4, "StorageClass": "GLACIER"}
    copy = {"IsRestoreInProgress": False, "RestoreExpiryDate": "2026-12-24T00:00:00Z"}
    listed = [{"Contents": [{**item, "RestoreStatus": copy}]}]
    record(monkeypatch, ListObjectsV2=lambda _: listed[-1])
    assert findings(job) == []
    listed.append({"Contents": [{**item, "RestoreStatus": {"IsRestoreInProgress": True}}]})
    assert [finding.level for finding in findings(job)] == ["error"]


def test_an_address_that_also_brings_another_folder_is_a_warning(aws, good):
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
    job = good.replace(registry=f"{REGISTRY}/mirror", distribution="torch_distributed")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("image", "warning")
    (finding,) = findings(good.replace(image=f"{REGISTRY}/mirror/{images.CURRENT.gpu}"))
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


def plan(job: Job) -> Job:
    return job.replace(request={"ResourceConfig": {"TrainingPlanArn": PLAN}})


@pytest.mark.parametrize(
    ("operation", "change", "key"),
    [
        ("DescribeFileSystems", lambda job: of_training(job, LUSTRE), "channels.training"),
        ("DescribeMlflowTrackingServer", lambda job: job.replace(mlflow=SERVER), "mlflow"),
        ("DescribeTrainingPlan", plan, "request.ResourceConfig.TrainingPlanArn"),
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
    if kind not in (named.SECRET, named.PARAMETER):  # which have no state
        assert {*kind.unusable} < {*states(kind)}


APP = SERVER.replace("tracking-server/team", "app/app-1")


@pytest.mark.parametrize(
    ("operation", "answer", "job_of", "levels"),
    [
        (
            "DescribeMlflowTrackingServer",
            lambda state: {"TrackingServerStatus": state},
            lambda job: job.replace(mlflow=SERVER),
            {"Started": "", "Created": "", "Stopped": "error", "Starting": ""},
        ),
        (
            "DescribeMlflowApp",
            lambda state: {"Status": state},
            lambda job: job.replace(mlflow=APP),
            {"Created": "", "Deleting": "error", "Creating": ""},
        ),
        (
            "DescribeTrainingPlan",
            lambda state: {"Status": state},
            lambda job: plan(job),
            {"Active": "", "Scheduled": "", "Pending": "", "Expired": "error"},
        ),
        (
            "DescribeFileSystems",
            lambda state: {"FileSystems": [{"Lifecycle": state}]},
            lambda job: of_training(job, LUSTRE),
            {"AVAILABLE": "", "CREATING": "", "DELETING": "error"},
        ),
    ],
)
def test_a_resource_in_a_state_without_use_is_an_error(
    aws,
    good,
    monkeypatch,
    operation: str,
    answer: Callable[[str], dict[str, Any]],
    job_of: Callable[[Job], Job],
    levels: dict[str, str],
):
    """Such as a stopped server; a state that passes by itself is none."""
    for state, level in levels.items():
        record(monkeypatch, SimulatePrincipalPolicy=simulated(), **{operation: answer(state)})
        found = [each for each in findings(job_of(good)) if state in each.problem]
        assert [each.level for each in found] == [level] * bool(level), state


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


def in_vpc(aws: boto3.Session, job: Job, zones: tuple[str, ...] = ("a",)) -> Job:
    """The job in a new VPC with a subnet in each of these zones."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"{REGION}{zone}"
        )["Subnet"]["SubnetId"]
        for number, zone in enumerate(zones)
    ]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
    return job.replace(network=Network(subnets=subnets, security_groups=[group]))


def vpc_of(aws: boto3.Session, job: Job) -> str:
    ec2 = aws.client("ec2")
    return str(ec2.describe_subnets(SubnetIds=job.network.subnets)["Subnets"][0]["VpcId"])


def of_channel(job: Job) -> list[tuple[str, str]]:
    """Levels and problems of the findings about the channel."""
    found = findings(job)
    return [(each.level, each.problem) for each in found if each.key == "channels.training"]


def test_a_lustre_path_begins_with_the_mount_name_in_the_jobs_vpc(aws, good, monkeypatch):
    """As SDK pull request 4257 has it: a path begins with MountName, which AWS chooses."""
    job = of_training(in_vpc(aws, good), LUSTRE)
    system = {"Lifecycle": "AVAILABLE", "VpcId": vpc_of(aws, job)}
    described = {"FileSystems": [system]}
    record(monkeypatch, SimulatePrincipalPolicy=simulated(), DescribeFileSystems=described)
    system["LustreConfiguration"] = {"MountName": "fsx"}
    assert of_channel(job) == []
    system["LustreConfiguration"] = {"MountName": "abcdefgh"}
    ((level, problem),) = of_channel(job)
    assert level == "error" and "abcdefgh" in problem and "/fsx/data" in problem
    del system["LustreConfiguration"]
    system["VpcId"] = "vpc-0123456789abcdef0"
    ((level, problem),) = of_channel(job)
    assert level == "warning" and "vpc-0123456789abcdef0" in problem


def test_no_question_is_sent_to_aws_twice(aws, good, monkeypatch):
    """The checks run at once, and share answers and errors."""
    put(aws, "data/a.csv")
    job = alias(aws, of_training(in_vpc(aws, good), "s3://language-id/data/"))
    job = job.replace(channels={**job.channels, "files": LUSTRE})
    elsewhere = {"Lifecycle": "AVAILABLE", "VpcId": "vpc-0123456789abcdef0"}
    described = {"FileSystems": [elsewhere]}
    record(monkeypatch, SimulatePrincipalPolicy=simulated(), DescribeFileSystems=described)
    asked: list[str] = []
    call = botocore.client.BaseClient._make_api_call

    def counting(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        asked.append(f"{operation} {arguments}")
        return call(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", counting)
    findings(job)
    assert {each for each in asked if asked.count(each) > 1} == set()
    for name in ("DescribeKey", "ListObjectsV2", "DescribeSubnets", "DescribeRouteTables"):
        assert any(each.startswith(name) for each in asked)


def test_efs_has_a_mount_target_in_the_jobs_vpc(aws, good, monkeypatch):
    efs = aws.client("efs")
    name = efs.create_file_system(CreationToken="x")["FileSystemId"]
    channel = {"file_system_id": name, "file_system_type": "EFS", "directory_path": "/data"}
    job = of_training(in_vpc(aws, good), channel)
    assert [level for level, _ in of_channel(job)] == ["error"]  # no mount target
    efs.create_mount_target(FileSystemId=name, SubnetId=job.network.subnets[0])
    assert of_channel(job) == []
    other = of_training(in_vpc(aws, good), channel)
    ((level, problem),) = of_channel(other)
    assert level == "warning" and vpc_of(aws, job) in problem
    denied = refusal("AccessDeniedException", "DescribeMountTargets")
    record(monkeypatch, SimulatePrincipalPolicy=simulated(), DescribeMountTargets=denied)
    assert [level for level, _ in of_channel(other)] == ["skipped"]


def encrypted(aws: boto3.Session, key: str) -> None:
    put(aws, "data/a.csv", ServerSideEncryption="aws:kms", SSEKMSKeyId=key)


def test_the_role_may_decrypt_data_that_has_a_customers_key(aws, good, monkeypatch):
    key = aws.client("kms").create_key()["KeyMetadata"]["Arn"]
    job = of_training(good, "s3://language-id/data/")
    encrypted(aws, key)
    record(monkeypatch, SimulatePrincipalPolicy=simulated())
    assert findings(job) == []
    record(monkeypatch, SimulatePrincipalPolicy=simulated("kms:Decrypt"))
    (finding,) = findings(job)
    assert (finding.level, finding.key) == ("warning", "role.kms:Decrypt")
    assert key in finding.problem
    aws.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    record(monkeypatch, SimulatePrincipalPolicy=simulated())
    (finding,) = findings(job)
    assert (finding.level, finding.key) == ("error", "channels.training")
    aws.client("kms").enable_key(KeyId=key.rpartition("/")[2])
    put(aws, "data/a.csv")
    record(monkeypatch, SimulatePrincipalPolicy=simulated("kms:Decrypt"))
    assert findings(job) == []  # which has no key
    encrypted(aws, key)
    owned = {"KeyMetadata": {"KeyManager": "AWS", "Arn": key, "KeyState": "Enabled"}}
    record(monkeypatch, SimulatePrincipalPolicy=simulated("kms:Decrypt"), DescribeKey=owned)
    assert findings(job) == []  # alias/aws/s3, which S3 uses for who may read the object


@pytest.mark.parametrize("code", ["403", "400", "404"])  # denied, SSE-C, deleted meanwhile
def test_permissions_are_checked_if_objects_are_not_described(aws, good, monkeypatch, code):
    """The account's own roles may not read data, so AWS denies the question for each channel."""
    put(aws, "data/a.csv")
    job = of_training(good, "s3://language-id/data/")
    job = job.replace(channels={**job.channels, "more": "s3://language-id/data/"})
    answers = {"HeadObject": refusal(code, "HeadObject")}
    record(monkeypatch, SimulatePrincipalPolicy=simulated("iam:PassRole"), **answers)
    denied, unknown = sorted(findings(job), key=lambda each: each.key)
    assert (denied.level, denied.key) == ("error", "caller.iam:PassRole")
    assert (unknown.level, unknown.key) == ("skipped", "channels")
    assert "channels.training, channels.more" in unknown.problem
