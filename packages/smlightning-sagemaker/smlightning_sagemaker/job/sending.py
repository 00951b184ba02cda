"""Sending a request: the account's role and bucket, the upload of the code, and the call itself."""

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws, request, source_archive
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.request import Destination
from smlightning_sagemaker.project import Project

# Studio writes the role and the user's identity to this file.
STUDIO = Path("/opt/ml/metadata/resource-metadata.json")


def submit(
    job: Job,
    project: Project,
    destination: Destination,
    body: dict[str, Any],
) -> str:
    """Upload the code, and create the training job without waiting for it; its name.

    Args:
        job: of job.toml.
        project: whose src/ is uploaded.
        destination: of the request; its bucket is created if it is missing.
        body: CreateTrainingJob, as it was checked.
    """
    name = str(body["TrainingJobName"])
    ensure_bucket(job, destination)
    upload(job, project, destination, name, body["OutputDataConfig"])
    try:
        aws.client("sagemaker", job.region).create_training_job(**body)
    except (KeyboardInterrupt, Exception) as failure:
        # AWS may have taken the job, and its answer was lost; a retry then finds its own name.
        if aws.code(failure) in ("", "ResourceInUse"):
            look = f"smlightning follow {name} --region {job.region}"
            print(f"AWS may have the job: check it before you send it again, {look}")
        raise
    return name


def fingerprint(job: Job, project: Project) -> str:
    """A digest of job.toml's values and of the code that would be uploaded."""
    digest = hashlib.sha256(job.model_dump_json().encode())
    with tempfile.TemporaryFile() as file:
        source_archive.write(file, project.src)
        file.seek(0)
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def account_destination(job: Job, *, create: bool = True) -> Destination:
    """Role and bucket in this account.

    Args:
        job: of job.toml.
        create: SageMaker's default bucket, if the job uses it and it is missing.

    Raises:
        UserError: the job has no role, or the bucket belongs to another account.
    """
    role = execution_role(job.role, job.region)
    destination = Destination(role, job.bucket or default_bucket(job.region))
    if create:
        ensure_bucket(job, destination)
    return destination


def execution_role(role: str, region: str) -> str:
    """The ARN of the role that the job runs under: the given one, else Studio's or the caller's.

    Raises:
        UserError: the role is empty, and the credentials are not those of a role, as in Studio.
    """
    if role.startswith("arn:"):
        return role
    iam = aws.client("iam", region)
    if role:
        return str(iam.get_role(RoleName=role.rpartition("/")[2])["Role"]["Arn"])
    facts: dict[str, str] = json.loads(STUDIO.read_bytes()) if STUDIO.is_file() else {}
    if "ExecutionRoleArn" in facts:
        return facts["ExecutionRoleArn"]
    caller = aws.client("sts", region).get_caller_identity()["Arn"]
    assumed = re.match(r"(arn:[\w-]+):sts::(\d+):assumed-role/([^/]+)/", caller)
    if not assumed:
        raise UserError(
            'role = "" means the role of SageMaker Studio, and this machine is not in Studio',
            "set role in job.toml to the ARN of a role that trusts sagemaker.amazonaws.com",
        )
    partition, account, name = assumed.groups()
    try:
        return str(iam.get_role(RoleName=name)["Role"]["Arn"])  # with its path
    except iam.exceptions.ClientError:  # denied; SageMaker's own roles have this path
        path = "service-role/" if "AmazonSageMaker-ExecutionRole" in name else ""
        return f"{partition}:iam::{account}:role/{path}{name}"


def default_bucket(region: str) -> str:
    """The name of SageMaker's default bucket of this account and region."""
    account = aws.client("sts", region).get_caller_identity()["Account"]
    return f"sagemaker-{region}-{account}"


def ensure_bucket(job: Job, destination: Destination) -> None:
    """Create SageMaker's default bucket if the job uses it and it is missing.

    Raises:
        UserError: another account has a bucket of that name, which anybody can guess.
    """
    from botocore.exceptions import ClientError

    if job.bucket:
        return
    name, region = destination.bucket, job.region
    account = name.rpartition("-")[2]
    s3 = aws.client("s3", region)
    try:
        s3.get_bucket_location(Bucket=name, ExpectedBucketOwner=account)
    except ClientError as failure:
        if aws.denied(failure):
            raise UserError(
                f"bucket {name} is another account's, or these credentials may not look at it",
                "set bucket in job.toml to your own bucket, or ask for s3:GetBucketLocation",
            ) from failure
        if aws.code(failure) != "NoSuchBucket":
            raise
        where = {} if region == "us-east-1" else {"LocationConstraint": region}
        s3.create_bucket(Bucket=name, **({"CreateBucketConfiguration": where} if where else {}))


def upload(
    job: Job, project: Project, destination: Destination, name: str, output: dict[str, Any]
) -> str:
    """Upload the archive of the code; its address.

    Without a key the bucket's default encrypts it: `aws:kms` in the call would replace that key by
    AWS's own (API_PutObject, SSEKMSKeyId), which a directory bucket does not take.

    Args:
        output: the request's OutputDataConfig; its key encrypts objects of the same bucket.
    """
    uri = request.archive_uri(job, destination, name)
    bucket, key = aws.s3_location(uri)
    extra = {}
    if output.get("KmsKeyId"):
        extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": output["KmsKeyId"]}
    account = re.fullmatch(rf"sagemaker-{job.region}-(\d{{12}})", bucket)  # the default bucket's
    if bucket == destination.bucket and account:
        extra["ExpectedBucketOwner"] = account[1]
    with tempfile.TemporaryFile() as file:
        source_archive.write(file, project.src)
        file.seek(0)
        aws.client("s3", job.region).upload_fileobj(file, bucket, key, ExtraArgs=extra)
    return uri
