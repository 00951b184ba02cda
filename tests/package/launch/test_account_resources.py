"""What a job names in an account is looked up: data, image, file system, key, secret, server."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto_account import ACCOUNT, REGION, record, refusal
from small_job import PROJECT

from smlightning.launch import account, images, request
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
    record(monkeypatch, ListObjectsV2=listed)
    assert findings(job) == []
    listed.append({"Contents": [{**item, "RestoreStatus": {"IsRestoreInProgress": True}}]})
    assert [finding.level for finding in findings(job)] == ["error"]


def test_an_address_that_also_brings_its_neighbour_is_warned_of(aws, good):
    put(aws, "train/a.csv")
    job = of_training(good, "s3://language-id/train")
    assert findings(job) == []
    put(aws, "train_old/a.csv")
    (finding,) = findings(job)
    assert finding.level == "warning" and "train_old" in finding.problem
    assert '"s3://language-id/train/"' in finding.cure
    assert findings(of_training(good, "s3://language-id/train/")) == []


def test_a_folder_to_resume_from_that_is_empty_is_warned_of(aws, good):
    job = good.replace(checkpoint_s3="s3://language-id/runs/frist/")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("checkpoint_s3", "warning")
    put(aws, "runs/frist/last.ckpt")
    assert findings(job) == []


@pytest.mark.parametrize("name", ["acme_data_lake", "AcmeDataLake"])
def test_aws_decides_on_a_bucket_with_an_old_name(aws, good, monkeypatch, name):
    """boto3 sends HeadBucket for it, and the answer counts."""
    job = of_training(good, f"s3://{name}/my data/")
    (finding,) = findings(job)
    assert (finding.key, finding.level) == ("channels.training", "error") and name in str(finding)
    head = {"BucketRegion": REGION, "ResponseMetadata": {"HTTPHeaders": {}}}
    listed = {"Contents": [{"Key": "my data/a.csv", "Size": 4}]}
    record(monkeypatch, HeadBucket=head, ListObjectsV2=listed)
    assert findings(job) == []


def test_an_image_that_a_mirror_has_not_is_warned_of(aws, good):
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
def test_what_is_not_there_or_cannot_be_used_is_an_error(aws, good, change: Change, key: str):
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
def test_what_moto_finds_in_every_account_or_in_none(
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


def test_a_training_plan_is_for_the_type_that_it_reserves(aws, good, monkeypatch):
    """Of the job, of its groups, or of the preference that names it."""
    summary = {"ReservedCapacityArn": PLAN, "TotalInstanceCount": 2, "Status": "Active"}
    reserved = [{**summary, "InstanceType": "ml.p5.48xlarge"}]
    record(monkeypatch, DescribeTrainingPlan={"ReservedCapacitySummaries": reserved})
    group = {"InstanceGroupName": "one", "InstanceCount": 2}
    other = {"InstanceType": "ml.p5e.48xlarge"}
    for config, is_of_plan in (
        ({}, False),  # p4d
        ({"InstanceGroups": [{**group, "InstanceType": "ml.p5.48xlarge"}]}, True),
        ({"InstanceGroups": [{**group, **other}]}, False),
    ):
        job = good.replace(request={"ResourceConfig": {"TrainingPlanArn": PLAN, **config}})
        keys = [found.key for found in findings(job) if found.level == "error"]
        assert keys == ([] if is_of_plan else ["request.ResourceConfig.TrainingPlanArn"])
    of_plan = {"InstanceType": "ml.p5.48xlarge", "TrainingPlanArns": [PLAN]}
    for preferences, errors in (
        ([of_plan, other], 0),
        ([{"InstanceType": "ml.p5.48xlarge"}, {**other, "TrainingPlanArns": [PLAN]}], 1),
    ):
        config = {"InstancePreferences": preferences}
        found = findings(good.replace(request={"ResourceConfig": config}))
        keys = [each.key for each in found if each.level == "error"]
        assert keys == ["request.ResourceConfig.InstancePreferences.TrainingPlanArns"] * errors, (
            found
        )


def test_subnets_with_too_few_addresses_and_without_ipv4(aws, good, monkeypatch):
    """Moto counts no addresses, and has no subnets of IPv6 alone."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/28")["Subnet"]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
    network = Network(subnets=[subnet["SubnetId"]], security_groups=[group])
    job = good.replace(network=network, instance_count=3)
    found = [finding for finding in findings(job) if "addresses" in finding.problem]
    assert [finding.level for finding in found] == ["error"], "11, where three p4d take 15"
    smaller = findings(job.replace(instance_count=2, instance_type="ml.p4d.24xlarge"))
    assert not [finding for finding in smaller if "addresses" in finding.problem], "10 of 11"
    del subnet["CidrBlock"]
    record(monkeypatch, DescribeSubnets={"Subnets": [{**subnet, "AvailableIpAddressCount": 0}]})
    found = [finding for finding in findings(job) if "IPv6" in finding.problem]
    assert [finding.level for finding in found] == ["warning"]
