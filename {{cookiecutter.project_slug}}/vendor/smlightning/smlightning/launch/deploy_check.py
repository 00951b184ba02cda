"""Checks of a planned deployment before anything is created: code, members, role, quota."""

from collections.abc import Iterator
from pathlib import Path

from smlightning.launch import aws
from smlightning.launch.account.context import Context
from smlightning.launch.account.permissions import (
    caller_arn,
    federated_user,
    missing_permissions,
)
from smlightning.launch.account.quotas import granted
from smlightning.launch.account.table import (
    DEPLOYER,
    ENDPOINT,
    SAGEMAKER,
    Facts,
    context_of_deployment,
)
from smlightning.launch.deploy_plan import Deployment
from smlightning.launch.findings import Finding, error, from_error, ordered, skipped
from smlightning.launch.job import Job
from smlightning.launch.preflight import secrets, source

CREATED = frozenset({"model", "endpoint-config", "endpoint"})  # by IAM's names
# The plan and these checks call these themselves, and report what is not allowed.
CALLED = (
    "sagemaker:DescribeTrainingJob",
    "sagemaker:ListTags",
    "s3:ListBucket",
    "pricing:GetProducts",
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
    "servicequotas:ListServiceQuotas",
    "servicequotas:ListAWSDefaultServiceQuotas",
)


def check(deployment: Deployment, src: Path) -> list[Finding]:
    """Findings of code, members, role, permissions and quota; `skipped` if AWS does not answer.

    Args:
        deployment: as it is planned.
        src: folder of the code that would be uploaded.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    findings = [*secrets.created(deployment.options.create, deployment.requests)]
    findings += source.uploaded(src, source.SERVING)
    for key, ask in (("permissions", permissions), ("quota", quota)):
        try:
            findings += ask(deployment)
        except (BotoCoreError, ClientError) as problem:
            reason = aws.explain(problem)
            findings.append(from_error(key, reason, cure="it was not checked", level="skipped"))
    return ordered(findings)


def context(deployment: Deployment) -> Context:
    """The caller, and a job that has no more than the deployment's region and hosts."""
    options = deployment.options
    job = Job(
        name=deployment.name,
        region=deployment.region,
        instance_type=options.instance,
        instance_count=options.count,
    )
    identity = aws.client("sts", deployment.region).get_caller_identity()
    return Context(job, deployment.job, identity, deployment.job["RoleArn"])


def facts(deployment: Deployment, asking: Context) -> Facts:
    """What the table of permissions reads of the deployment."""
    model = deployment.requests["Model"]
    return Facts(
        job=asking.job,
        request={**deployment.job, "Tags": model["Tags"]},
        partition=asking.role.split(":")[1],
        account=asking.account,
        role=asking.role,
        job_name=deployment.name,
        inference_image=model["PrimaryContainer"]["Image"],
        created=CREATED,
    )


def permissions(deployment: Deployment) -> Iterator[Finding]:
    """The model's role exists, and it and the caller may do what the deployment needs."""
    asking = context(deployment)
    iam = asking.client("iam")
    role = asking.role.rpartition("/")[2]
    try:
        iam.get_role(RoleName=role)
    except iam.exceptions.NoSuchEntityException:
        problem = f"{role}, the role of {deployment.job['TrainingJobName']}, does not exist"
        yield error("role", problem, f"create it again, and let {SAGEMAKER} do sts:AssumeRole")
        return
    yield from federated_user(asking, DEPLOYER)
    whose = {DEPLOYER: caller_arn(asking, iam, asking.role), ENDPOINT: asking.role}
    values = context_of_deployment(deployment.requests)
    for who, arn in whose.items():
        for finding in missing_permissions(iam, who, arn, facts(deployment, asking), values):
            if finding.key.removeprefix(f"{who}.") not in CALLED:
                yield finding


def quota(deployment: Deployment) -> Iterator[Finding]:
    """The account may start as many instances; a new account may start no GPU at all."""
    options = deployment.options
    name = f"{options.instance} for endpoint usage"
    listed = granted(context(deployment), [name]).get(name)
    if not listed:
        problem = f'AWS lists no "{name}" in {deployment.region}'
        yield skipped("quota", problem, "look in the Service Quotas console")
    elif options.count > listed["Value"]:
        limit = f"{listed['Value']:g} in {deployment.region}"
        problem = f'{options.count} is above the quota "{name}", {limit}'
        cure = "ask for more in the Service Quotas console; it can take days"
        yield error("--count", problem, cure)
