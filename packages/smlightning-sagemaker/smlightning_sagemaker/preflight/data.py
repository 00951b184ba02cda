"""Checks that a job's buckets are in its region, and that its addresses match only its data."""

from collections.abc import Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, error, skipped, warning
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

OUTPUT = "request.OutputDataConfig.S3OutputPath"


def stored(job: Job, body: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Buckets are in the job's region, channels have data, and a folder to resume from has files.

    SageMaker reads and writes in the job's region only (API_S3DataSource, API_OutputDataConfig).
    """
    usable: dict[str, bool] = {}
    for key, uri in addresses(job, body).items():
        name, _ = aws.s3_location(uri)
        is_output = key in ("bucket", OUTPUT)
        if name not in usable:
            problems = list(bucket(job, key, name, may_be_missing=is_output))
            yield from problems
            usable[name] = not problems
        if is_output or not usable[name]:
            continue
        found = objects(job, uri)
        if not found and key == "checkpoint_s3":
            problem = f"{uri} is empty, so training begins at step 0"
            yield warning(key, problem, "to resume a run, correct the address")
        elif not found:
            yield error(key, f"there is no data at {uri}", "upload it, or correct the address")
        yield from neighbours(found, key, uri)


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


def bucket(job: Job, key: str, name: str, *, may_be_missing: bool) -> Iterator[Finding]:
    """The finding about a bucket that the job cannot use, or perhaps cannot.

    Args:
        job: of job.toml.
        key: of job.toml, that names the bucket.
        name: of the bucket.
        may_be_missing: `submit` creates SageMaker's default bucket.
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
        if not (may_be_missing and name.startswith(f"sagemaker-{job.region}-")):
            hint = "create it in the job's region, or correct the name"
            yield error(key, f"bucket {name} does not exist", hint)
    elif region != job.region:
        problem = f"bucket {name} is in {region}, the job in {job.region}"
        yield error(key, problem, "use one in the job's region")
    elif code:
        problem = f"these credentials may not look at bucket {name} ({code})"
        yield skipped(key, problem, "check that the job's role may use it")


def objects(job: Job, uri: str) -> list[str]:
    """The keys of the first objects at an S3 address, without empty ones."""
    name, prefix = aws.s3_location(uri)
    listed = aws.client("s3", job.region).list_objects_v2(Bucket=name, Prefix=prefix)
    return [item["Key"] for item in listed.get("Contents", []) if item["Size"]]


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
