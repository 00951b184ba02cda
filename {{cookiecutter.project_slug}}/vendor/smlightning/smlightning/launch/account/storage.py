"""Whether a job's buckets exist in its region, and its addresses bring its data only."""

from collections.abc import Iterator
from typing import Any

from smlightning.launch import aws
from smlightning.launch.account.context import Context
from smlightning.launch.account.named import KEY, ask
from smlightning.launch.findings import Finding, error, skipped, warning

# Storage classes that nothing can read before it is restored (S3's API, GetObject).
ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")


def buckets(context: Context) -> Iterator[Finding]:
    """Every bucket exists in the job's region, channels have data, and a resumed folder has files.

    `submit` creates the account's default bucket for output.
    """
    unfit: dict[str, Finding | None] = {}
    for key, uri in context.addresses().items():
        name = aws.s3_location(uri)[0]
        is_new = name not in unfit
        if is_new:
            unfit[name] = look_up(context, key, name)
        finding = unfit[name]
        is_created = name == context.default_bucket and not is_data(key)
        if finding:
            if is_new and not (is_created and finding.problem.endswith("does not exist")):
                yield finding
        elif is_data(key):
            yield from data(context, key, uri)
        elif key == "checkpoint_s3" and context.job.checkpoint_s3 not in ("", "auto"):
            if not context.objects(uri):
                problem = f"there is nothing at {uri}, so training begins at step 0"
                yield warning(key, problem, "correct the address, if it is to resume there")
            yield from neighbours(context, key, uri)


def is_data(key: str) -> bool:
    return key.startswith("channels.")


def look_up(context: Context, key: str, name: str) -> Finding | None:
    """Why the job cannot use a bucket, or may not be able to; None if it can."""
    from botocore.exceptions import ClientError

    region = context.job.region
    try:
        answer = context.client("s3").head_bucket(Bucket=name)
    except ClientError as failure:
        answer = failure.response
    code = str(answer.get("Error", {}).get("Code", ""))
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    place = headers.get("x-amz-bucket-region", region)
    if code == "404":
        cure = "create it in the job's region, or correct the name"
        return error(key, f"bucket {name} does not exist", cure)
    if place != region:
        problem = f"bucket {name} is in {place}, the job in {region}"
        return error(key, problem, "use one in the job's region")
    if code:
        problem = f"these credentials may not see bucket {name} ({code})"
        cure = "see that the job's role may read it, or ask for s3:ListBucket"
        return warning(key, problem, cure)
    return None


def data(context: Context, key: str, uri: str) -> Iterator[Finding]:
    """The first objects of a channel exist and can be read."""
    objects = context.objects(uri)
    if not objects:
        yield error(key, f"there is no data at {uri}", "upload it, or correct the address")
    archived = [item["Key"] for item in objects if is_archived(item)]
    if archived:
        problem = f"{len(archived)} of the first objects are archived, as {archived[0]}"
        yield error(key, problem, "restore them from Glacier first (aws s3api restore-object)")
    yield from neighbours(context, key, uri)


def is_archived(item: dict[str, Any]) -> bool:
    """Whether an object cannot be read: no copy of it was restored, or not yet."""
    restored = "RestoreExpiryDate" in item.get("RestoreStatus", {})
    return item.get("StorageClass") in ARCHIVED and not restored


def neighbours(context: Context, key: str, uri: str) -> Iterator[Finding]:
    """What else an address without a final slash brings: S3 matches the beginnings of keys."""
    prefix = aws.s3_location(uri)[1]
    if not prefix or prefix.endswith("/"):
        return
    names = [item["Key"] for item in context.objects(uri)]
    inside = [name for name in names if name.startswith(f"{prefix}/")]
    others = [name for name in names if name != prefix and name not in inside]
    if inside and others:
        folder = others[0].removeprefix(prefix).split("/")[0]
        problem = f"{uri} also brings {prefix}{folder}, whose name begins in the same way"
        yield warning(key, problem, f'end it with a slash: "{uri}/"')


def data_keys(context: Context) -> tuple[tuple[str, ...], list[Finding]]:
    """ARNs of customers' KMS keys on the first object of each channel, and findings about them.

    AWS's own key is left out: S3 uses it for everybody who may read the object
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html).
    """
    from botocore.exceptions import ClientError

    keys: list[str] = []
    problems: list[Finding] = []
    unknown: list[str] = []
    for channel, uri in context.addresses().items():
        try:
            objects = context.objects(uri) if is_data(channel) else []
        except ClientError:
            continue  # `buckets` reports it
        for item in objects[:1]:
            where = {"Bucket": aws.s3_location(uri)[0], "Key": item["Key"]}
            try:
                key = context.client("s3").head_object(**where).get("SSEKMSKeyId")
            except ClientError:  # who runs preflight need not be allowed to read data
                unknown.append(channel)
                continue
            if key:
                answer, found = ask(context, channel, f"KMS key {key} of {uri}", KEY, KeyId=key)
                problems += found
                if answer.get("KeyMetadata", {}).get("KeyManager") == "CUSTOMER":
                    keys.append(key)
    if unknown:
        problem = f"the encryption of {', '.join(unknown)} was not looked up (HeadObject)"
        cure = "see that the role may use their KMS keys, or allow s3:GetObject (docs/sagemaker.md)"
        problems.append(skipped("channels", problem, cure))
    return tuple(dict.fromkeys(keys)), problems
