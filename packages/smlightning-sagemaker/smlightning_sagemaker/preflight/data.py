"""Checks that a job's buckets and file systems are where it reads, and hold only its data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smlightning_sagemaker.findings import Finding, error, from_error, skipped, warning
from smlightning_sagemaker.job import aws, instances
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import network
from smlightning_sagemaker.project import Project

ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")  # storage classes whose objects are restored before use
MOST_PAGES = 200  # of a listing, of 1,000 objects each
MOST_HEADS = 20  # objects whose tier is read
PORTS = {"EFS": 2049, "FSxLustre": 988}  # efs/latest/ug, fsx/latest/LustreGuide, security groups
OUTPUT = "request.OutputDataConfig.S3OutputPath"


@dataclass(frozen=True)
class Listing:
    """Objects at an address in S3; ``at_least`` is empty if these are all of them."""

    objects: list[dict[str, Any]]
    at_least: str = ""


def stored(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Buckets are in the job's region, channels have data, and a folder to resume from has files.

    SageMaker reads and writes in the job's region only (API_S3DataSource, API_OutputDataConfig).
    """
    usable: dict[str, bool] = {}
    listings: dict[str, Listing] = {}
    for key, uri in addresses(job, body).items():
        name, _ = aws.s3_location(uri)
        is_output = key in ("bucket", OUTPUT)
        if is_output and name.startswith(f"sagemaker-{job.region}-"):
            continue  # SageMaker's default bucket, which `submit` creates
        try:
            if name not in usable:
                problems = list(bucket(job, key, name))
                yield from problems
                usable[name] = not problems
            if not is_output and usable[name]:
                listings[key] = listing(job, uri)
                yield from content(job, key, uri, listings[key])
        except aws.failures() as failure:  # the others are judged all the same
            problem = aws.explain(failure)
            yield from_error(key, problem, hint="it was not checked", level="skipped")
    yield from disk(job, body, listings)


def content(job: Job, key: str, uri: str, found: Listing) -> Iterator[Finding]:
    """An address has objects, only its own, and SageMaker can copy them."""
    names = [item["Key"] for item in found.objects]
    if not names and key == "checkpoint_s3":
        problem = f"{uri} is empty, so training begins at step 0"
        yield warning(key, problem, "to resume a run, correct the address")
    elif not names:
        yield error(key, f"there is no data at {uri}", "upload it, or correct the address")
    yield from neighbours(names, key, uri)
    away = [item["Key"] for item in found.objects if is_archived(item)]
    away = away or archived_by_tier(job, uri, found)
    if away:
        problem = (
            f"{found.at_least}{len(away)} of the objects at {uri} are archived, {away[0]} first"
        )
        yield error(key, problem, "restore them (aws s3api restore-object), or use a copy")


def disk(job: Job, body: dict[str, Any], listings: dict[str, Listing]) -> Iterator[Finding]:
    """An error if the hosts' disks are too small for what SageMaker copies to them.

    It copies channels in mode File, and the checkpoints of an earlier job (API_CheckpointConfig).
    Without disks of their own, hosts have volume_gb (API_ResourceConfig, VolumeSizeInGB).

    Args:
        listings: what is at the address of each key.
    """
    usual = body["AlgorithmSpecification"]["TrainingInputMode"]
    keys = [
        f"channels.{channel['ChannelName']}"
        for channel in body.get("InputDataConfig", [])
        if channel.get("InputMode", usual) == "File"
    ]
    there = [key for key in [*keys, "checkpoint_s3"] if key in listings and listings[key].objects]
    copied = {key: listings[key] for key in there}
    total = sum(item["Size"] for each in copied.values() for item in each.objects)
    held = max((each.at_least for each in copied.values()), default="")
    held += f"{total / 2**30:.0f} GB are in {', '.join(copied)}"
    ways = ['set input_mode = "FastFile" of a channel'] * bool(copied.keys() & {*keys})
    ways += ["remove old checkpoints"] * ("checkpoint_s3" in copied)
    smaller = ", or ".join(ways)
    for kind in dict.fromkeys(each.instance_type for each in job.variants) if total else ():
        if not instances.disk(kind):
            if total > job.volume_gb * 2**30:
                problem = f"found {job.volume_gb}, and {held}"
                yield error("volume_gb", problem, f"raise it, or {smaller}")
            continue
        wanted = [kind.removeprefix("ml.")]
        types = aws.client("ec2", job.region).describe_instance_types(InstanceTypes=wanted)
        for own in (each.get("InstanceStorageInfo", {}) for each in types["InstanceTypes"]):
            if total > own.get("TotalSizeInGB", math.inf) * 10**9:
                problem = f"{kind} has {own['TotalSizeInGB']} GB of its own disks, and {held}"
                yield error("instance_type", problem, f"use a type with larger disks, or {smaller}")


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

    if name.startswith("arn:"):  # AWS's failure to show an access point is no mistake of the job
        _, _, _, region, owner, point = name.split(":", 5)
        wanted = {"AccountId": owner, "Name": point.rpartition("/")[2]}
        aws.client("s3control", region or job.region).get_access_point(**wanted)
        return
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


def listing(job: Job, uri: str) -> Listing:
    """The objects at an S3 address without empty ones: all, or those of the first pages."""
    name, prefix = aws.s3_location(uri)
    pages = aws.client("s3", job.region).get_paginator("list_objects_v2")
    wanted = {"Bucket": name, "Prefix": prefix, "OptionalObjectAttributes": ["RestoreStatus"]}
    found: list[dict[str, Any]] = []
    for number, page in enumerate(pages.paginate(**wanted)):
        if number == MOST_PAGES:
            return Listing(found, at_least="at least ")
        found += [item for item in page.get("Contents", []) if item["Size"]]
    return Listing(found)


def is_archived(item: dict[str, Any]) -> bool:
    """Whether SageMaker cannot copy an object before somebody restores it.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/restoring-objects.html
    """
    is_restored = "RestoreExpiryDate" in item.get("RestoreStatus", {})
    return item.get("StorageClass") in ARCHIVED and not is_restored


def archived_by_tier(job: Job, uri: str, found: Listing) -> list[str]:
    """Objects that S3 Intelligent-Tiering has archived, among the oldest; a listing does not show.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/intelligent-tiering-overview.html
    """
    s3, (name, _) = aws.client("s3", job.region), aws.s3_location(uri)
    tiered = [each for each in found.objects if each.get("StorageClass") == "INTELLIGENT_TIERING"]
    tiered.sort(key=lambda each: each["LastModified"])
    heads = ((each, s3.head_object(Bucket=name, Key=each["Key"])) for each in tiered[:MOST_HEADS])
    return [each["Key"] for each, head in heads if "ArchiveStatus" in head]


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
        key, system = f"channels.{name}", source["FileSystemId"]
        found = ways_in(job, source)
        reached = {vpc for vpc, _, _ in found}
        if not hosts & reached:
            where = f"is reached from {', '.join(sorted(reached)) or 'no network'}"
            problem = f"{system} {where}, and the hosts are in {', '.join(hosts)}"
            hint = "use subnets of its network, or create a mount target (EFS) in the hosts'"
            yield error(key, problem, hint)
            continue
        mount = found[0][2]
        if mount and not aws.within(source["DirectoryPath"], f"/{mount}"):
            problem = f"found {source['DirectoryPath']}, and the mount name of {system} is {mount}"
            yield error(key, problem, f'begin directory_path with "/{mount}"')
        interfaces = [each for _, own, _ in found for each in own]
        groups = network.groups_of(job, interfaces) if interfaces else []
        port = PORTS[source["FileSystemType"]]
        if groups and not network.lets_hosts_in(job, body, groups, port):
            problem = f"{', '.join(groups)} of {system} lets the hosts in at no port {port}"
            yield error(key, problem, f"allow TCP {port} from the hosts' security group")


def ways_in(job: Job, source: dict[str, Any]) -> list[tuple[str, list[str], str]]:
    """The ways to a file system that are in use: VPC, network interfaces, and FSx's mount name.

    Sources: fsx API_FileSystem; efs API_MountTargetDescription.
    """
    name = source["FileSystemId"]
    if source["FileSystemType"] == "FSxLustre":
        systems = aws.client("fsx", job.region).describe_file_systems(FileSystemIds=[name])
        return [
            (
                each["VpcId"],
                each.get("NetworkInterfaceIds", []),
                each.get("LustreConfiguration", {}).get("MountName", ""),
            )
            for each in systems["FileSystems"]
            if each.get("Lifecycle", "AVAILABLE") in ("AVAILABLE", "UPDATING")
        ]
    targets = aws.client("efs", job.region).describe_mount_targets(FileSystemId=name)
    return [
        (each["VpcId"], [each["NetworkInterfaceId"]] if "NetworkInterfaceId" in each else [], "")
        for each in targets["MountTargets"]
        if each["LifeCycleState"] == "available"
    ]


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
