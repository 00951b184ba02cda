"""Checks that a job's buckets exist in its region, and that addresses match only its data."""

from collections.abc import Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.preflight.account.context import Context


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
            if not (found := context.objects(uri)):
                yield error(key, f"there is no data at {uri}", "upload it, or correct the address")
            yield from neighbours(found, key, uri)
        elif key == "checkpoint_s3" and context.job.checkpoint_s3 not in ("", "auto"):
            if not (found := context.objects(uri)):
                problem = f"{uri} is empty, so training begins at step 0"
                yield warning(key, problem, "to resume a run, correct the address")
            yield from neighbours(found, key, uri)


def is_data(key: str) -> bool:
    return key.startswith("channels.")


def look_up(context: Context, key: str, name: str) -> Finding | None:
    """The finding about a bucket that the job cannot use, or perhaps cannot; None if it can."""
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


def neighbours(found: list[dict[str, Any]], key: str, uri: str) -> Iterator[Finding]:
    """A warning if an address without a final slash also matches another folder's keys."""
    prefix = aws.s3_location(uri)[1]
    if not prefix or prefix.endswith("/"):
        return
    names = [item["Key"] for item in found]
    inside = [name for name in names if name.startswith(f"{prefix}/")]
    others = [name for name in names if name != prefix and name not in inside]
    if inside and others:
        folder = others[0].removeprefix(prefix).split("/")[0]
        problem = f"{uri} also matches the keys of {prefix}{folder}"
        yield warning(key, problem, f'end it with a slash: "{uri}/"')
