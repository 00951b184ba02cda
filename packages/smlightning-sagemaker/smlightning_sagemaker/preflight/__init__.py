"""Checks of a job before it costs money: job.toml, the request, and src/.

A check is a function that yields findings. Those of JOB_CHECKS read the job and the project; those
of REQUEST_CHECKS read the request that is sent, and run if one can be built and its values have
AWS's types.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.findings import Finding, from_error, has_errors, ordered
from smlightning_sagemaker.job import aws, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.request import Destination
from smlightning_sagemaker.preflight import (
    channels,
    cluster,
    hyperparameters,
    image,
    imports,
    members,
    network,
    requirements,
    secrets,
    settings,
    source,
)
from smlightning_sagemaker.preflight.summary import passed, rehearsal, summary
from smlightning_sagemaker.project import Project

__all__ = [
    "JOB_CHECKS",
    "REQUEST_CHECKS",
    "offline_checks",
    "passed",
    "rehearsal",
    "run",
    "summary",
]

JobCheck = Callable[[Job, Project], Iterator[Finding]]
RequestCheck = Callable[[Job, dict[str, Any], Project], Iterator[Finding]]

JOB_CHECKS: tuple[JobCheck, ...] = (
    cluster.region,
    cluster.instance,
    cluster.launcher,
    cluster.sharding,
    image.image,
    image.options,
    settings.spot,
    settings.names,
    settings.network,
    settings.checkpoints,
    channels.keys,
    channels.channel_names,
    channels.unread_channels,
    channels.option_paths,
    hyperparameters.hyperparameters,
    hyperparameters.conflicts,
    source.files,
    source.code,
    source.monitor,
    requirements.replacing,
    requirements.wheels,
    imports.imports,
    members.unusable,
)
REQUEST_CHECKS: tuple[RequestCheck, ...] = (
    members.environment,
    network.isolated,
    members.partitions,
    secrets.visible,
    channels.addresses,
    members.places,
)


def offline_checks(
    job: Job, project: Project, destination: Destination | None = None
) -> tuple[list[Finding], dict[str, Any] | None]:
    """The findings that need no network, and the request if one can be built.

    `submit` sends this request, unless a finding is an error.

    Args:
        job: of job.toml.
        project: whose src/ would be sent.
        destination: of the job; default: a dry run's.
    """
    findings = [finding for check in JOB_CHECKS for finding in check(job, project)]
    try:
        destination = destination or request.dry_destination(job)
        body = request.training_request(job, project, destination, request.job_name(job))
    except UserError as failure:
        if not has_errors(findings):  # otherwise one of these is the cause
            findings.append(from_error("job.toml", failure))
        return findings, None
    limits = list(members.limits(job, body, project))
    if aws.wrong_types(body, aws.shape("CreateTrainingJobRequest")):
        return [*findings, *limits], None
    for check in REQUEST_CHECKS:
        findings += check(job, body, project)
    return [*findings, *members.unsaid(limits, findings)], body


def run(
    job: Job,
    project: Project,
    *,
    offline: bool = False,
    accept: Collection[str] = (),
) -> list[Finding]:
    """All findings, errors first.

    Args:
        job: of job.toml.
        project: whose src/ would be sent.
        offline: connect neither to AWS nor to a package index.
        accept: keys whose errors become warnings.
    """
    from smlightning_sagemaker.preflight import account

    destination, unanswered = (None, []) if offline else account.destination(job)
    findings, body = offline_checks(job, project, destination)
    findings += [*unanswered, *requirements.resolved(job, project, offline=offline)]
    if body and destination:
        findings += account.check(job, body, project)
    return ordered(findings, accept)
