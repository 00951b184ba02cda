"""Preflight finds a job's data and buckets, as SageMaker does only after the start."""

from datetime import datetime
from typing import Any

import boto3
import pytest

from moto_account import Vpc, findings, levels, record, refusal
from smlightning_sagemaker.job.job import Channel, Job

pytest_plugins = "moto_account"


def put(aws: boto3.Session, name: str) -> None:
    aws.client("s3").put_object(Bucket="language-id", Key=name, Body=b"text")


def of_training(job: Job, channel: Channel) -> Job:
    options = {**job.hyperparameters, "dataset": "training"}
    return job.replace(channels={"training": channel}, hyperparameters=options)


def test_buckets_are_in_the_jobs_region_and_channels_have_data(aws, good):
    s3 = aws.client("s3")
    far = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3", "eu-west-1").create_bucket(Bucket="far-away", CreateBucketConfiguration=far)
    put(aws, "data/train.csv")
    s3.put_object(Bucket="language-id", Key="marker/", Body=b"")
    channels: dict[str, Any] = {
        "training": "s3://language-id/data/",
        "empty": "s3://language-id/marker/",
        "none": "s3://absent-bucket/x",
    }
    found = findings(good.replace(channels=channels, checkpoint_s3="s3://far-away/x"))
    assert [str(each).split(";")[0] for each in found] == [
        "error   channels.empty: there is no data at s3://language-id/marker/",
        "error   channels.none: bucket absent-bucket does not exist",
        "error   checkpoint_s3: bucket far-away is in eu-west-1, the job in us-east-1",
    ]


def test_only_sagemakers_default_bucket_may_be_missing(aws, good):
    """`submit` creates it."""
    assert levels(good.replace(bucket="")) == []
    elsewhere = {"OutputDataConfig": {"S3OutputPath": "s3://absent-bucket/x"}}
    assert levels(good.replace(request=elsewhere)) == [
        ("error", "request.OutputDataConfig.S3OutputPath")
    ]


def test_a_bucket_that_these_credentials_may_not_see_is_skipped(good, monkeypatch, aws):
    record(monkeypatch, HeadBucket=refusal("403", "HeadBucket"))
    assert ("skipped", "bucket") in levels(good)


@pytest.mark.parametrize("address", ["s3://language-id/train", "s3://language-id/train/"])
def test_an_address_that_matches_another_folder_is_a_warning(aws, good, address):
    put(aws, "train/a.csv")
    job = of_training(good, address)
    assert findings(job) == []
    put(aws, "train_old/a.csv")
    if address.endswith("/"):
        assert findings(job) == []
    else:
        (finding,) = findings(job)
        assert finding.level == "warning" and "train_old" in finding.problem
        assert '"s3://language-id/train/"' in finding.hint


def test_an_empty_folder_to_resume_from_is_a_warning(aws, good):
    job = good.replace(checkpoint_s3="s3://language-id/runs/frist/")
    assert levels(job) == [("warning", "checkpoint_s3")]
    put(aws, "runs/frist/last.ckpt")
    assert levels(job) == []


def test_archived_data_is_an_error_until_it_is_restored(aws, good):
    s3 = aws.client("s3")
    job = of_training(good, "s3://language-id/old/")
    s3.put_object(Bucket="language-id", Key="old/x", Body=b"x", StorageClass="GLACIER")
    (finding,) = findings(job)
    assert (finding.level, finding.key) == ("error", "channels.training")
    assert "old/x" in finding.problem and "restore-object" in finding.hint
    put(aws, "old/x")
    assert findings(job) == []


def test_copied_data_fits_on_the_hosts_disks(aws, good, monkeypatch):
    large = {"Key": "old/x", "Size": 200 * 2**30}
    record(monkeypatch, ListObjectsV2={"Contents": [large]})
    job = of_training(good, "s3://language-id/old/").replace(instance_type="ml.c5.2xlarge")
    assert levels(job) == [("error", "volume_gb")]
    assert levels(job.replace(volume_gb=250)) == []
    streamed = {"s3_data": "s3://language-id/old/", "input_mode": "FastFile"}
    assert levels(of_training(job, streamed)) == []
    # g5.xlarge has its own disk of 250 GB (EC2's DescribeInstanceTypes), and no other.
    own = job.replace(instance_type="ml.g5.xlarge")
    assert levels(own) == []
    large["Size"] = 600 * 2**30
    assert levels(own) == [("error", "instance_type")]
    assert levels(own.replace(instance_type="ml.g5.48xlarge")) == []


def test_copied_checkpoints_of_an_earlier_job_fit_on_the_hosts_disks(aws, good, monkeypatch):
    record(monkeypatch, ListObjectsV2={"Contents": [{"Key": "old/x", "Size": 120 * 2**30}]})
    job = good.replace(checkpoint_s3="s3://language-id/old/", instance_type="ml.c5.2xlarge")
    (finding,) = findings(job)
    assert finding.key == "volume_gb" and "120 GB are in checkpoint_s3" in finding.problem
    assert levels(job.replace(volume_gb=130)) == []
    both = of_training(job.replace(volume_gb=200), "s3://language-id/old/")
    assert levels(both) == [("error", "volume_gb")]
    assert levels(both.replace(volume_gb=250)) == []


@pytest.mark.parametrize(("count", "known"), [(2_500, ""), (300_000, "at least ")])
def test_a_listing_is_read_to_its_end_or_is_a_lower_bound(aws, good, monkeypatch, count, known):
    """S3 lists 1,000 objects an answer."""

    def page(arguments: dict[str, Any]) -> dict[str, Any]:
        first = int(arguments.get("ContinuationToken", 0))
        names = range(first, min(first + 1000, count))
        following = {"NextContinuationToken": str(first + 1000)} if first + 1000 < count else {}
        found = [{"Key": f"d/{each}", "Size": 10**8} for each in names]
        return {"Contents": found, "IsTruncated": bool(following), **following}

    record(monkeypatch, ListObjectsV2=page)
    job = of_training(good, "s3://language-id/d/").replace(instance_type="ml.c5.2xlarge")
    (finding,) = findings(job)
    assert finding.key == "volume_gb"
    total = min(count, 200_000) * 10**8 / 2**30
    assert f"and {known}{total:.0f} GB are in channels.training" in finding.problem


def test_tiers_of_which_a_listing_says_nothing_are_read(aws, good, monkeypatch):
    tiered = {"StorageClass": "INTELLIGENT_TIERING", "LastModified": datetime(2026, 1, 1)}
    record(
        monkeypatch,
        ListObjectsV2={"Contents": [{"Key": "d/a", "Size": 1, **tiered}]},
        HeadObject=[{"ArchiveStatus": "ARCHIVE_ACCESS"}, {}],
    )
    job = of_training(good, "s3://language-id/d/")
    assert levels(job) == [("error", "channels.training")]
    assert levels(job) == []


@pytest.mark.parametrize("denied", ["s3://language-id/d/", "s3://far-away/d/"])
def test_a_channel_that_is_not_shown_leaves_the_others_judged(aws, good, monkeypatch, denied):
    aws.client("s3").create_bucket(Bucket="far-away")
    bucket = denied.split("/")[2]

    def answer(arguments: dict[str, Any]) -> Any:
        return refusal("AccessDenied", "ListObjectsV2") if arguments["Bucket"] == bucket else {}

    record(monkeypatch, ListObjectsV2=answer)
    channels = {"one": "s3://language-id/d/", "two": "s3://far-away/d/"}
    found = levels(good.replace(channels=channels))
    assert sorted(level for level, _ in found) == ["error", "skipped"]


def test_an_access_point_is_judged_by_itself(aws, good):
    """moto has no such access point; a role of another account may."""
    point = "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/one/x"
    channels = {"point": point, "none": "s3://absent-bucket/x"}
    found = levels(good.replace(channels=channels))
    assert found == [("skipped", "channels.point"), ("error", "channels.none")]


OFFLINE = {"PIP_INDEX_URL": "https://pip.example.internal/simple"}
SYSTEM = "fs-0123456789abcdef0"


def efs(vpc: str) -> dict[str, Any]:
    """Answer for a file system with a mount target in this network; empty: without one."""
    facts = {"MountTargetId": "fsmt-1", "FileSystemId": SYSTEM, "SubnetId": "subnet-1"}
    target = {**facts, "LifeCycleState": "available", "VpcId": vpc}
    return {"DescribeMountTargets": {"MountTargets": [target] if vpc else []}}


def lustre(vpc: str) -> dict[str, Any]:
    return {"DescribeFileSystems": {"FileSystems": [{"FileSystemId": SYSTEM, "VpcId": vpc}]}}


@pytest.mark.parametrize(("kind", "answer"), [("EFS", efs), ("FSxLustre", lustre)])
def test_a_file_system_is_in_the_network_of_the_hosts(good, vpc, monkeypatch, kind, answer):
    vpc.gateway("s3")
    channel = {"file_system_id": SYSTEM, "file_system_type": kind, "directory_path": "/fsx/x"}
    job = of_training(good, channel).replace(network=vpc.network, environment=OFFLINE)
    record(monkeypatch, **answer(vpc.id))
    assert levels(job) == []
    record(monkeypatch, **answer("vpc-other"))
    assert levels(job) == [("error", "channels.training")]
    record(monkeypatch, **efs(""))
    assert [level for level, _ in levels(job)] == ["error"]


def interfaces(vpc: Vpc) -> str:
    """A network interface with the hosts' group, which lets them in, as a file system has it."""
    made = vpc.ec2.create_network_interface(SubnetId=vpc.subnet, Groups=[vpc.group])
    return str(made["NetworkInterface"]["NetworkInterfaceId"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"Lifecycle": "DELETING"}, ["error"]),
        ({"LustreConfiguration": {"MountName": "abc"}}, ["error"]),
    ],
)
def test_a_file_system_has_its_state_and_its_mount_name(good, vpc, monkeypatch, changes, expected):
    vpc.gateway("s3")
    place = {"file_system_id": SYSTEM, "file_system_type": "FSxLustre", "directory_path": "/fsx/x"}
    job = of_training(good, place).replace(network=vpc.network, environment=OFFLINE)
    facts = lustre(vpc.id)["DescribeFileSystems"]["FileSystems"][0]
    mounted = {"LustreConfiguration": {"MountName": "fsx"}}
    record(monkeypatch, DescribeFileSystems={"FileSystems": [{**facts, **mounted, **changes}]})
    assert [level for level, _ in levels(job)] == expected


def test_a_file_system_lets_the_hosts_in_at_its_port(good, vpc, monkeypatch):
    vpc.gateway("s3")
    place = {"file_system_id": SYSTEM, "file_system_type": "EFS", "directory_path": "/x"}
    job = of_training(good, place).replace(network=vpc.network, environment=OFFLINE)
    answer = efs(vpc.id)
    answer["DescribeMountTargets"]["MountTargets"][0]["NetworkInterfaceId"] = interfaces(vpc)
    record(monkeypatch, **answer)
    assert levels(job) == []
    closed = vpc.ec2.create_security_group(GroupName="nfs", Description="x", VpcId=vpc.id)
    target = answer["DescribeMountTargets"]["MountTargets"][0]["NetworkInterfaceId"]
    vpc.ec2.modify_network_interface_attribute(
        NetworkInterfaceId=target, Groups=[closed["GroupId"]]
    )
    assert levels(job) == [("error", "channels.training")]
    itself = [{"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}]
    itself[0]["UserIdGroupPairs"] = [{"GroupId": vpc.group}]
    vpc.ec2.authorize_security_group_ingress(GroupId=closed["GroupId"], IpPermissions=itself)
    assert levels(job) == []
