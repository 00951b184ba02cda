"""Checks of a job in the AWS account; they change nothing there."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from smlightning_sagemaker.findings import Finding, from_error, skipped
from smlightning_sagemaker.job import aws, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight.account import named, network, permissions, quotas, storage
from smlightning_sagemaker.preflight.account.context import Context
from smlightning_sagemaker.preflight.connections import Connection

__all__ = ["CHECKS", "check"]

AccountCheck = Callable[[Context], Iterator[Finding]]

# Each check by the key of the finding that reports it as skipped.
CHECKS: dict[str, AccountCheck] = {
    "permissions": permissions.permissions,
    "vpc": network.vpc,
    "buckets": storage.buckets,
    "named": named.named,
    "quota": quotas.quota,
}


def check(
    job: Job,
    body: dict[str, Any],
    *,
    sender: str = "",
    connections: tuple[Connection, ...] = (),
) -> list[Finding]:
    """The findings of every check; `skipped` ones say what AWS did not answer.

    Args:
        job: of job.toml.
        body: the request that would be sent.
        sender: name or ARN of the role that will send it; empty: the caller.
        connections: what the job's processes connect to.
    """
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        identity = aws.client("sts", job.region).get_caller_identity()
    except NoCredentialsError:
        problem = (
            "no credentials here, so role, permissions, network, buckets, data and quota "
            "were not checked"
        )
        return [skipped("AWS", problem, aws.SIGN_IN)]
    except (BotoCoreError, ClientError) as error:
        return [from_error("AWS", aws.explain(error), cure="run preflight with --offline")]
    role = body["RoleArn"].replace(request.DRY_ACCOUNT, identity["Account"])
    if role.endswith(f"/{request.DRY_ROLE}"):
        role = ""
    context = Context(
        job,
        body,
        identity,
        role,
        sender=sender,
        connections=connections,
    )
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda name: answered(name, context), CHECKS)
        return [finding for findings in answers for finding in findings]


def answered(name: str, context: Context) -> list[Finding]:
    """The findings of a check, up to the first error of AWS."""
    from botocore.exceptions import BotoCoreError, ClientError

    findings: list[Finding] = []
    try:
        for finding in CHECKS[name](context):
            findings.append(finding)  # one by one: findings before an error stay
    except (BotoCoreError, ClientError) as error:
        problem = aws.explain(error)
        findings.append(from_error(name, problem, cure="it was not checked", level="skipped"))
    return findings
