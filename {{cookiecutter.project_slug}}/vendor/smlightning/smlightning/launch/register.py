"""A finished job's model as a version of a model package in SageMaker's registry.

The version holds an archive of model and code like a deployment's, its inference image, and what
the job measured last. It waits for approval there, and costs what its archive costs in S3.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, deploy, deploy_plan, jobs
from smlightning.launch.deploy_plan import Deployment, Options
from smlightning.launch.follow import describe
from smlightning.launch.request import with_members
from smlightning.serving import JSON, JSON_LINES, PLAIN

STAMP = re.compile(r"-\d{8}-\d{6}$")  # as `submit` and `tune` end a job's name
MOST_PROPERTIES = 50  # of a package (CustomerMetadataMap)
NOT_ALLOWED = re.compile(r"[^\w\s.:/=+\-@]")  # in a property's key or value


@dataclass(frozen=True)
class Registration:
    """What is about to be created.

    Attributes:
        files: the archive, as `deploy` writes it.
        group: name of the group of packages, which is created where there is none.
        request: of CreateModelPackage.
        cost: what is said of it.
    """

    files: Deployment
    group: str
    request: dict[str, Any]
    cost: str


def plan(job_name: str, region: str, options: Options, group: str = "") -> Registration:
    """A version of a package with the job's model.

    Args:
        job_name: of a job that has completed.
        region: where it ran.
        options: whose instance and image the version names, and further members of its request.
        group: of packages, by name or ARN; empty: the job's name without its time.

    Raises:
        UserError: the job has no model, the group is none, the job is registered already, or a
            member is wrong.
    """
    client = aws.client("sagemaker", region)
    job = describe(job_name, client)
    group = group or STAMP.sub("", job_name)
    check_group(group, client)
    files = deploy_plan.plan(job_name, region, options, folder="registered")
    if aws.objects(files.archive, aws.client("s3", region)):
        raise UserError(
            f"{job_name} is registered already, at {files.archive}",
            f"list its versions: aws sagemaker list-model-packages --region {region} "
            f"--model-package-group-name {group}",
        )
    container = files.requests["Model"]["PrimaryContainer"]
    request = {
        "ModelPackageGroupName": group,
        "ModelPackageDescription": f"model of the training job {job_name}",
        "ModelApprovalStatus": "PendingManualApproval",
        "InferenceSpecification": {
            "Containers": [container],
            "SupportedContentTypes": [JSON, JSON_LINES, PLAIN],
            "SupportedResponseMIMETypes": [JSON, JSON_LINES],
        },
        "CustomerMetadataProperties": properties(job),
    }
    request = with_members("ModelPackage", request, options.create)
    cost = f"cost    a version of {group}: its archive in S3, {files.archive}, and nothing else"
    return Registration(files, group, request, cost)


def check_group(group: str, client: Any) -> None:
    """Check a group of packages: a name, or the ARN of one that exists, in any account.

    Raises:
        UserError: it is neither.
    """
    for violation in aws.violations(group, aws.shape("ArnOrName")):
        raise UserError(
            f"--group: {violation.problem}",
            "give a name of at most 63 letters, digits and hyphens, or the ARN of a group",
        )
    if not group.startswith("arn:"):
        return
    if f":{client.meta.region_name}:" not in group or ":model-package-group/" not in group:
        raise UserError(
            f"--group {group} is no model package group of {client.meta.region_name}",
            "give the ARN of one, which ends in :model-package-group/NAME",
        )
    if not aws.call(client, "Describe", "ModelPackageGroup", group):
        raise UserError(f"--group {group} does not exist", "create it, or give another")


def properties(job: dict[str, Any]) -> dict[str, str]:
    """What a version tells of its job: name, image, instances, and the last of each metric."""
    facts = jobs.summary(job)
    told = {
        "job": job["TrainingJobName"],
        "training image": facts["image"],
        "instances": facts["instances"].replace("×", "x"),
        **{f"metric {name}": value for name, value in jobs.metrics(job).items()},
    }
    allowed = [
        (NOT_ALLOWED.sub("_", name)[:128], NOT_ALLOWED.sub("_", value)[:256])
        for name, value in told.items()
        if value
    ]
    return dict(allowed[:MOST_PROPERTIES])


def register(registration: Registration, src: Path) -> str:
    """Create it; the ARN of the version.

    Raises:
        botocore.exceptions.ClientError: AWS refused it, and what was uploaded is removed again.
    """
    files = registration.files
    client = aws.client("sagemaker", files.region)
    try:
        deploy.upload(files, src)
        group = registration.group
        if not aws.call(client, "Describe", "ModelPackageGroup", group):
            aws.call(client, "Create", "ModelPackageGroup", group)
        return str(client.create_model_package(**registration.request)["ModelPackageArn"])
    except BaseException:
        deploy.clean_up(
            lambda: deploy.remove_objects(files.archive, files.region),
            f"{files.archive} may be left: aws s3 rm --recursive {files.archive}",
        )
        raise


def next_step(arn: str, region: str) -> str:
    """How a version is approved."""
    return (
        f"registered {arn}; approve it: aws sagemaker update-model-package --region {region} "
        f"--model-package-arn {arn} --model-approval-status Approved"
    )
