"""Whether the buckets of a job are there, in its region, and hold its data and nothing more."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smlightning.launch import aws
from smlightning.launch.account.context import Context
from smlightning.launch.account.named import KEY, ask
from smlightning.launch.findings import Finding, error, skipped, warning

# Classes of storage from which nothing can be read before it is restored (S3's API, GetObject).
ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")


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
        if bucket.problem == "404" and name == context.default_bucket and not is_data(key):
            continue  # `submit` creates it
        if bucket.problem or bucket.region != region:
            if first:  # said for the first key that names the bucket
                yield unfit(key, bucket, region)
        elif is_data(key):
            yield from data(key, uri, context)
        elif key == "checkpoint_s3" and context.job.checkpoint_s3 not in ("", "auto"):
            yield from resumed(uri, context)


def is_data(key: str) -> bool:
    return key.startswith("channels.")


def data(key: str, uri: str, context: Context) -> Iterator[Finding]:
    """The first objects of a channel."""
    objects = context.objects(uri)
    if not objects:
        yield error(key, f"there is no data at {uri}", "upload it, or correct the address")
        return
    yield from neighbours(key, uri, objects)
    archived = [item["Key"] for item in objects if is_archived(item)]
    if archived:
        problem = f"{len(archived)} of the first objects are archived, as {archived[0]}"
        yield error(key, problem, "restore them from Glacier first (aws s3api restore-object)")


def data_keys(context: Context) -> tuple[tuple[str, ...], list[Finding]]:
    """ARNs of customers' KMS keys that the first object of each channel has, and what is wrong.

    Who runs preflight need not be allowed to read data; all channels without an answer are one
    finding.

    AWS's own key is left out: S3 uses it for everybody who may read the object
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html).
    """
    from botocore.exceptions import ClientError

    keys: list[str] = []
    problems: list[Finding] = []
    unknown: dict[str, str] = {}  # channel → AWS's code for why its object is not described
    for channel, uri in context.addresses().items():
        try:
            objects = context.objects(uri) if is_data(channel) else []
        except ClientError:
            continue  # `buckets` reports it
        for item in objects[:1]:
            where = {"Bucket": aws.s3_location(uri)[0], "Key": item["Key"]}
            try:
                answer = context.client("s3").head_object(**where)
            except ClientError as refusal:
                unknown[channel] = aws.code(refusal)
                continue
            if key := answer.get("SSEKMSKeyId"):
                answer, found = ask(context, channel, f"KMS key {key} of {uri}", KEY, KeyId=key)
                problems += found
                if answer.get("KeyMetadata", {}).get("KeyManager") == "CUSTOMER":
                    keys.append(key)
    if unknown:
        codes = ", ".join(dict.fromkeys(unknown.values()))
        problem = f"the encryption of {', '.join(unknown)} was not looked up (HeadObject: {codes})"
        cure = "see that the role may use their KMS keys, or allow s3:GetObject (docs/sagemaker.md)"
        problems.append(skipped("channels", problem, cure))
    return tuple(dict.fromkeys(keys)), problems


def is_archived(item: dict[str, Any]) -> bool:
    """Whether an object cannot be read: no copy of it was restored, or not yet."""
    restored = "RestoreExpiryDate" in item.get("RestoreStatus", {})
    return item.get("StorageClass") in ARCHIVED and not restored


def resumed(uri: str, context: Context) -> Iterator[Finding]:
    """The folder of an earlier job's checkpoints."""
    objects = context.objects(uri)
    if not objects:
        problem = f"there is nothing at {uri}, so training begins at step 0"
        yield warning("checkpoint_s3", problem, "correct the address, if it is to resume there")
    yield from neighbours("checkpoint_s3", uri, objects)


def neighbours(key: str, uri: str, objects: list[dict[str, Any]]) -> Iterator[Finding]:
    """What else an address without a slash at its end brings: S3 takes it for a beginning."""
    prefix = aws.s3_location(uri)[1]
    if not prefix or prefix.endswith("/"):
        return
    names = [item["Key"] for item in objects]
    inside = [name for name in names if name.startswith(f"{prefix}/")]
    others = [name for name in names if name != prefix and name not in inside]
    if inside and others:
        folder = others[0].removeprefix(prefix).split("/")[0]
        problem = f"{uri} also brings {prefix}{folder}, whose name begins as its own does"
        yield warning(key, problem, f'end it with a slash: "{uri}/"')


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
