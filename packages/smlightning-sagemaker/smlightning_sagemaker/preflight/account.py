"""Checks that ask AWS: what it reports only after the job has started, and is billed.

They change nothing in the account. CreateTrainingJob itself rejects a wrong role, name or quota at
once and for free, so nothing checks these here. A check is a function of job, request and project
that yields findings.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.findings import Finding, from_error, skipped
from smlightning_sagemaker.job import aws, sending
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.request import Destination
from smlightning_sagemaker.preflight import data, network, role
from smlightning_sagemaker.project import Project

Check = Callable[[Job, dict[str, Any], Project], Iterator[Finding]]

# Each check by the key of the finding that reports it as skipped.
CHECKS: dict[str, Check] = {
    "role": role.storage,
    "keys": role.keys,
    "secrets": role.secrets,
    "network.security_groups": network.hosts,
    "network.subnets": network.s3,
    "network.index": network.index,
    "network.endpoints": network.carries,
    "network.secrets": network.secrets,
    "data": data.stored,
    "channels": data.file_systems,
}


def destination(job: Job) -> tuple[Destination | None, list[Finding]]:
    """The role and the bucket in the account; without them None, and the finding why."""
    from botocore.exceptions import NoCredentialsError
    from botocore.parsers import ResponseParserError

    try:
        aws.client("sts", job.region).get_caller_identity()
    except NoCredentialsError:
        problem = "no credentials here, so role, keys, secrets, network and data were not checked"
        return None, [skipped("AWS", problem, aws.SIGN_IN)]
    except aws.failures() as error:
        level = "skipped" if isinstance(error, ResponseParserError) else "error"
        hint = "run preflight with --offline"
        return None, [from_error("AWS", aws.explain(error), hint=hint, level=level)]
    try:
        with aws.errors():
            return sending.account_destination(job, create=False), []
    except UserError as error:
        return None, [from_error("role", error)]


def check(job: Job, body: dict[str, Any], project: Project) -> list[Finding]:
    """The findings of every check; `skipped` ones report what AWS did not answer.

    Args:
        job: of job.toml.
        body: the request that would be sent, with the role and the bucket of the account.
        project: whose src/ would be sent.
    """
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda name: answered(name, job, body, project), CHECKS)
        return [finding for findings in answers for finding in findings]


def answered(name: str, job: Job, body: dict[str, Any], project: Project) -> list[Finding]:
    """The findings of a check, up to the first error of AWS."""
    findings: list[Finding] = []
    try:
        for finding in CHECKS[name](job, body, project):
            findings.append(finding)  # one by one: findings before an error stay
    except aws.failures() as error:
        problem = aws.explain(error)
        findings.append(from_error(name, problem, hint="it was not checked", level="skipped"))
    return findings
