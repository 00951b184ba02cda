"""Checks that a job's buckets and file systems are where it reads, and hold only its data."""

from collections.abc import Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, error, skipped, warning
from smlightning_sagemaker.job import aws, instances
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")  # storage classes whose objects are restored before use
OUTPUT = "request.OutputDataConfig.S3OutputPath"


def stored(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Buckets are in the job's region, channels have data, and a folder to resume from has files.

    SageMaker reads and writes in the job's region only (API_S3DataSource, API_OutputDataConfig).
    """
    usable: dict[str, bool] = {}
    sizes: dict[str, int] = {}
    for key, uri in addresses(job, body).items():
        name, _ = aws.s3_location(uri)
        is_output = key in ("bucket", OUTPUT)
        if is_output and name.startswith(f"sagemaker-{job.region}-"):
            continue  # SageMaker's default bucket, which `submit` creates
        if name not in usable:
            problems = list(bucket(job, key, name))
            yield from problems
            usable[name] = not problems
        if is_output or not usable[name]:
            continue
        stored = objects(job, uri)
        sizes[key] = sum(item["Size"] for item in stored)
        found = [item["Key"] for item in stored]
        if not found and key == "checkpoint_s3":
            problem = f"{uri} is empty, so training begins at step 0"
            yield warning(key, problem, "to resume a run, correct the address")
        elif not found:
            yield error(key, f"there is no data at {uri}", "upload it, or correct the address")
        yield from neighbours(found, key, uri)
        yield from archived(stored, key, uri)
    yield from disk(job, body, sizes)


def disk(job: Job, body: dict[str, Any], sizes: dict[str, int]) -> Iterator[Finding]:
    """An error if the hosts' disks are too small for the channels that SageMaker copies to them.

    Without disks of their own, hosts have volume_gb (API_ResourceConfig, VolumeSizeInGB).

    Args:
        sizes: bytes at the address of each key, of its first 1,000 objects.
    """
    usual = body["AlgorithmSpecification"]["TrainingInputMode"]
    copied = [
        sizes.get(f"channels.{channel['ChannelName']}", 0)
        for channel in body.get("InputDataConfig", [])
        if channel.get("InputMode", usual) == "File"
    ]
    total = sum(copied) / 2**30
    if total > job.volume_gb and not (instances.disk(job.instance_type) or job.other_hosts):
        problem = f"found {job.volume_gb}, and the channels hold {total:.0f} GB or more"
        yield error("volume_gb", problem, 'raise it, or set input_mode = "FastFile" of a channel')


def addresses(job: Job, body: dict[str, Any]) -> dict[str, str]:
    """Key of job.toml → its address in S3; for checkpoints only that of an earlier job."""
    chosen = {}
    for channel in body.get("InputDataConfig", []):
        name = channel["ChannelName"]
        if name in job.channels:  # and not `code`, of an isolated job
            source = channel.get("DataSource", {}).get("S3DataSource", {})
            chosen[f"channels.{name}"] = str(source.get("S3Uri", ""))
    output_key = OUTPUT if "S3OutputPath" in job.request.get("OutputDataConfig", {}) else "bucket"
    chosen[output_key] = body["OutputDataConfig"]["S3OutputPath"]
    if job.checkpoint_s3 != "auto":
        chosen["checkpoint_s3"] = job.checkpoint_s3
    return {key: uri for key, uri in chosen.items() if aws.s3_uri(uri)}


def bucket(job: Job, key: str, name: str) -> Iterator[Finding]:
    """The finding about a bucket that the job cannot use, or perhaps cannot.

    Args:
        job: of job.toml.
        key: of job.toml, that names the bucket.
        name: of the bucket.
    """
    from botocore.exceptions import ClientError

    try:
        answer = aws.client("s3", job.region).head_bucket(Bucket=name)
    except ClientError as failure:
        answer = failure.response
    code = str(answer.get("Error", {}).get("Code", ""))
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region", job.region)
    if code == "404":
        hint = "create it in the job's region, or correct the name"
        yield error(key, f"bucket {name} does not exist", hint)
    elif region != job.region:
        problem = f"bucket {name} is in {region}, the job in {job.region}"
        yield error(key, problem, "use one in the job's region")
    elif code:
        problem = f"these credentials may not look at bucket {name} ({code})"
        yield skipped(key, problem, "check that the job's role may use it")


def objects(job: Job, uri: str) -> list[dict[str, Any]]:
    """The first objects at an S3 address, at most 1,000, without empty ones."""
    name, prefix = aws.s3_location(uri)
    listed = aws.client("s3", job.region).list_objects_v2(
        Bucket=name, Prefix=prefix, OptionalObjectAttributes=["RestoreStatus"]
    )
    return [item for item in listed.get("Contents", []) if item["Size"]]


def archived(stored: list[dict[str, Any]], key: str, uri: str) -> Iterator[Finding]:
    """An error if SageMaker cannot copy an object before somebody restores it.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/restoring-objects.html
    """
    away = [
        item["Key"]
        for item in stored
        if item.get("StorageClass") in ARCHIVED
        and "RestoreExpiryDate" not in item.get("RestoreStatus", {})
    ]
    if away:
        problem = f"{len(away)} of the objects at {uri} are archived, {away[0]} first"
        yield error(key, problem, "restore them (aws s3api restore-object), or use a copy")


def file_systems(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """FSx for Lustre is in the hosts' network, and EFS has a mount target there.

    https://docs.aws.amazon.com/sagemaker/latest/dg/model-access-training-data.html
    """
    sources = {
        channel["ChannelName"]: channel["DataSource"]["FileSystemDataSource"]
        for channel in body.get("InputDataConfig", [])
        if "FileSystemDataSource" in channel.get("DataSource", {})
    }
    if not (sources and "VpcConfig" in body):
        return
    wanted = {"SubnetIds": body["VpcConfig"]["Subnets"]}
    subnets = aws.client("ec2", job.region).describe_subnets(**wanted)["Subnets"]
    hosts = {subnet["VpcId"] for subnet in subnets}
    for name, source in sources.items():
        reached = networks(job, source)
        if not hosts & reached:
            where = f"is reached from {', '.join(sorted(reached)) or 'no network'}"
            problem = f"{source['FileSystemId']} {where}, and the hosts are in {', '.join(hosts)}"
            hint = "use subnets of its network, or create a mount target (EFS) in the hosts'"
            yield error(f"channels.{name}", problem, hint)


def networks(job: Job, source: dict[str, Any]) -> set[str]:
    """The VPCs from which a file system is reached."""
    name = source["FileSystemId"]
    if source["FileSystemType"] == "FSxLustre":
        fsx = aws.client("fsx", job.region)
        systems = fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"]
        return {system["VpcId"] for system in systems}
    efs = aws.client("efs", job.region)
    targets = efs.describe_mount_targets(FileSystemId=name)["MountTargets"]
    return {target["VpcId"] for target in targets if target["LifeCycleState"] == "available"}


def neighbours(found: list[str], key: str, uri: str) -> Iterator[Finding]:
    """A warning if an address without a final slash also matches another folder's keys.

    SageMaker takes every key that begins with the address (API_S3DataSource, S3Prefix).
    """
    _, prefix = aws.s3_location(uri)
    if not prefix or prefix.endswith("/"):
        return
    inside = [name for name in found if name.startswith(f"{prefix}/")]
    others = [name for name in found if name != prefix and name not in inside]
    if inside and others:
        folder = others[0].removeprefix(prefix).split("/")[0]
        problem = f"{uri} also matches the keys of {prefix}{folder}"
        yield warning(key, problem, f'end it with a slash: "{uri}/"')
