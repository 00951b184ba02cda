"""The CreateTrainingJob request that a rehearsal follows, as `launch` would send it, and its channels' data."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from launch import aws, profiles
from launch import request as requests
from launch.job import Job
from runtime.report import UserError

SAMPLE = 64 * 2**20  # bytes of one channel on S3, at most
BEGINNING = 4 * 2**20  # of one file of lines, up to the end of a line
LISTED, TAKEN = 1000, 200  # objects
LINES = (".csv", ".tsv", ".jsonl", ".txt")


def make(job: Job) -> tuple[dict[str, Any], str]:
    """The request, and what makes it another one than would be sent, if anything.

    Raises:
        UserError: the job makes no valid request.
    """
    try:
        return requests.dry_run(job), ""
    except ModuleNotFoundError as error:
        return without_sdk(job), f"{error.name} is not installed, so the request is not the SDK's (make setup)"


def without_sdk(job: Job) -> dict[str, Any]:
    """The parts of the request that a rehearsal uses, also for code that is not the job's."""
    return {
        "HyperParameters": profiles.encoded(requests.hyperparameters(job), job.name, job.region, ""),
        "Environment": requests.environment(job),
        "AlgorithmSpecification": {"ContainerEntrypoint": profiles.FORWARDING if job.forward_stop else []},
        "ResourceConfig": {"InstanceType": job.instance_type},
    }


def sample(name: str, uri: str, request: Mapping[str, Any], into: Path) -> str:
    """Copy objects from all over the listing of `uri` into a folder, as SageMaker would name them; says how much.

    Raises:
        UserError: there is no access, or nothing that is small enough.
    """
    instead = f"give a local folder with some of its data: --channel {name}=DIR"
    bucket, prefix = aws.s3_location(uri)
    if not uri.startswith("s3://"):
        raise UserError(f"channel {name} is not on S3; {instead}")
    size = taken = 0
    with aws.errors(f"channel {name} = {uri} cannot be read", instead):
        s3 = aws.client("s3", json.loads(request["HyperParameters"]["sagemaker_region"]))
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        listed = list(islice((item for page in pages for item in page.get("Contents", []) if item["Size"]), LISTED))
        for item in listed[:: -(-len(listed) // TAKEN) or 1]:
            key = item["Key"]
            inside = prefix if prefix.endswith("/") else f"{prefix}/" if key.startswith(f"{prefix}/") else ""
            path = into / (key.removeprefix(inside) if inside else key.rpartition("/")[2])
            whole = not key.endswith(LINES) or item["Size"] <= BEGINNING
            if not path.resolve().is_relative_to(into.resolve()) or size + whole * item["Size"] > SAMPLE:
                continue
            part = {} if whole else {"Range": f"bytes=0-{BEGINNING - 1}"}
            content = s3.get_object(Bucket=bucket, Key=key, **part)["Body"].read()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if whole else content[: content.rfind(b"\n") + 1])
            size, taken = size + len(content), taken + 1
    if not taken:
        raise UserError(f"channel {name} = {uri} has no data of at most {SAMPLE >> 20} MiB; check it, or {instead}")
    return f"{taken} objects of {uri}, {size / 2**20:.1f} MiB"
