"""Whether the buckets of a job are there, in its region, and hold its data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smlightning.launch import aws
from smlightning.launch.account.context import Context
from smlightning.launch.findings import Finding, error, warning


@dataclass(frozen=True)
class Bucket:
    """What AWS says of a bucket."""

    name: str
    region: str
    problem: str  # AWS's code of why it cannot be seen; empty if it can


def buckets(context: Context) -> Iterator[Finding]:
    """Every bucket is there and in the job's region, and channels have data."""
    s3, region = context.client("s3"), context.job.region
    seen: dict[str, Bucket] = {}
    for key, uri in context.addresses().items():
        name = aws.s3_location(uri)[0]
        first = name not in seen
        if first:
            seen[name] = look_up(s3, name, region)
        bucket = seen[name]
        if bucket.problem or bucket.region != region:
            if first:  # said for the first key that names the bucket
                yield unfit(key, bucket, region)
        elif key.startswith("channels.") and not aws.objects(uri, s3):
            yield error(key, f"there is no data at {uri}", "upload it, or correct the address")


def look_up(s3: Any, name: str, region: str) -> Bucket:
    """The bucket; its region is taken to be the job's where AWS does not say it."""
    from botocore.exceptions import ClientError

    try:
        answer = s3.head_bucket(Bucket=name)
    except ClientError as error:
        answer = error.response
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    problem = str(answer.get("Error", {}).get("Code", ""))
    return Bucket(name, headers.get("x-amz-bucket-region", region), problem)


def unfit(key: str, bucket: Bucket, region: str) -> Finding:
    """Why the job cannot use a bucket, or may not be able to."""
    if bucket.problem == "404":
        cure = "create it in the job's region, or correct the name"
        return error(key, f"bucket {bucket.name} does not exist", cure)
    if bucket.region != region:
        problem = f"bucket {bucket.name} is in {bucket.region}, the job in {region}"
        return error(key, problem, "take one in the job's region")
    problem = f"these credentials may not see bucket {bucket.name} ({bucket.problem})"
    return warning(key, problem, "see that the job's role may read it, or ask for s3:ListBucket")
