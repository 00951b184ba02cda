"""What is in the way of a planned deployment or registration: its code and members, the account.

Asked before anything is uploaded or created; the questions change nothing.
"""

from collections.abc import Iterator
from pathlib import Path

from smlightning.launch import aws
from smlightning.launch.account.context import Context
from smlightning.launch.account.permissions import (
    caller_arn,
    missing_permissions,
    unknown_permissions,
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

KINDS = {
    "Model": "model",
    "EndpointConfig": "endpoint-config",
    "Endpoint": "endpoint",
    "TransformJob": "transform-job",
}
# What a plan and its check have called themselves: they have said where it is not allowed.
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


def check(deployment: Deployment, *, group: str = "", src: Path | None = None) -> list[Finding]:
    """Findings of code, members, role, permissions and quota; `skipped` what could not be asked.

    Args:
        deployment: as it is planned.
        group: of model packages, in which its archive and image become a version, and nothing
            else is created; empty: all of it is.
        src: folder of the code that would be uploaded; None: it is not checked.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    kinds = ("Model", "ModelPackage") if group else deployment.requests
    findings = [*secrets.created(deployment.options.create, kinds)]
    if src:
        findings += source.uploaded(src, source.SERVING)
    for key, ask in (("permissions", permissions), ("quota", quota)):
        try:
            findings += ask(deployment, group)
        except (BotoCoreError, ClientError) as problem:
            reason = aws.explain(problem)
            findings.append(from_error(key, reason, cure="it was not checked", level="skipped"))
    return ordered(findings)


def context(deployment: Deployment) -> Context:
    """Who asks, and for what. Of the job no more than its region is read."""
    options = deployment.options
    job = Job(
        name=deployment.name,
        region=deployment.region,
        instance_type=options.instance,
        instance_count=options.count,
    )
    identity = aws.client("sts", deployment.region).get_caller_identity()
    return Context(job, deployment.job, identity, deployment.job["RoleArn"])


def facts(deployment: Deployment, asking: Context, group: str) -> Facts:
    """What the table of permissions reads of it."""
    created = {KINDS[kind] for kind in deployment.requests}
    if deployment.options.asynchronous:
        created.add("asynchronous-endpoint")
    if group:
        created = {"model-package"}
    model = deployment.requests["Model"]
    return Facts(
        job=asking.job,
        request={**deployment.job, "Tags": model["Tags"]},
        partition=asking.role.split(":")[1],
        account=asking.account,
        role=asking.role,
        job_name=deployment.name,
        inference_image=model["PrimaryContainer"]["Image"],
        transform=deployment.options.transform,
        package_group=group,
        created=frozenset(created),
    )


def permissions(deployment: Deployment, group: str) -> Iterator[Finding]:
    """The model's role exists, and it and the caller may do what the deployment needs."""
    asking = context(deployment)
    iam = asking.client("iam")
    role = asking.role.rpartition("/")[2]
    try:
        iam.get_role(RoleName=role)
    except iam.exceptions.NoSuchEntityException:
        problem = f"{role}, under which {deployment.job['TrainingJobName']} ran, is gone"
        yield error("role", problem, f"create it again, and let {SAGEMAKER} do sts:AssumeRole")
        return
    yield from unknown_permissions(asking, DEPLOYER)
    whose = {DEPLOYER: caller_arn(asking, iam, asking.role)}
    if not group:
        whose[ENDPOINT] = asking.role
    needed = facts(deployment, asking, group)
    values = context_of_deployment(deployment.requests)
    for who, arn in whose.items():
        for finding in missing_permissions(iam, who, arn, needed, values):
            if finding.key.removeprefix(f"{who}.") not in CALLED:
                yield finding


def quota(deployment: Deployment, group: str) -> Iterator[Finding]:
    """So many instances may answer. New accounts may start no GPU at all."""
    options = deployment.options
    if group or options.serverless:
        return
    use = "transform job usage" if options.transform else "endpoint usage"
    name = f"{options.instance} for {use}"
    listed = granted(context(deployment), [name]).get(name)
    limit = listed["Value"] if listed else 0.0
    if not listed:
        problem = f'AWS lists no "{name}" in {deployment.region}'
        yield skipped("quota", problem, "look in the Service Quotas console")
    elif options.count > limit:
        problem = f'{options.count} is above the quota "{name}", {limit:g} in {deployment.region}'
        cure = "ask for more in the Service Quotas console; it can take days"
        yield error("--count", problem, cure)
