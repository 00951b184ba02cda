"""Checks of a job before it costs money.

A check is a function that reads the finished request, the job and the project, and yields findings.
It is here only if AWS would take the job and bill for it, or if the job would train something else
than was meant. CreateTrainingJob, IAM and botocore reject the rest at once, and for free.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.findings import Finding, from_error, ordered
from smlightning_sagemaker.job import aws, request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.request import Destination
from smlightning_sagemaker.preflight import (
    account,
    channels,
    checkpoints,
    environment,
    hyperparameters,
    image,
    imports,
    isolation,
    launcher,
    requirements,
    script,
    secrets,
    source,
)
from smlightning_sagemaker.preflight.summary import summary, verdict
from smlightning_sagemaker.project import Project

__all__ = ["CHECKS", "all_findings", "offline_checks", "run", "summary", "verdict"]

Check = Callable[[Job, dict[str, Any], Project], Iterator[Finding]]


def packages(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """requirements.txt keeps the image's torch, and has what src/ imports."""
    yield from requirements.replacing(job, project)
    yield from requirements.unlocked(job, project)
    yield from requirements.unhashed(job, project)
    yield from requirements.lightnings(job, project)
    yield from requirements.wheels(job, project)
    yield from imports.imports(job, project)


CHECKS: tuple[Check, ...] = (
    launcher.instance,
    launcher.smddp,
    launcher.processes,
    launcher.shards,
    launcher.precision,
    launcher.disk,
    launcher.volume_key,
    launcher.toolkit,
    launcher.tensorboard,
    launcher.forwarded_stops,
    image.kind,
    image.torch,
    image.launcher,
    image.processor,
    image.cuda,
    image.holes,
    image.options,
    hyperparameters.options,
    hyperparameters.conflicts,
    channels.unread,
    channels.missing,
    channels.local_paths,
    channels.other_paths,
    channels.whole,
    channels.pipe,
    channels.same_variable,
    channels.addresses,
    channels.overlapping,
    checkpoints.restarts,
    checkpoints.whole_bucket,
    checkpoints.local_path,
    checkpoints.within_data,
    environment.reserved,
    environment.variables,
    environment.hidden_gpus,
    environment.misplaced,
    environment.references,
    environment.secrets,
    isolation.packages,
    isolation.lightning,
    isolation.secrets,
    isolation.repositories,
    secrets.visible,
    secrets.in_files,
    source.complete,
    source.left_out,
    source.hidden,
    source.size,
    script.booleans,
    script.ranks,
    packages,
)


def offline_checks(
    job: Job, project: Project, destination: Destination | None = None
) -> tuple[list[Finding], dict[str, Any] | None]:
    """The findings that need no network, and the request if its values have AWS's types.

    Args:
        job: of job.toml.
        project: whose src/ would be sent.
        destination: of the job; default: a dry run's.
    """
    findings: list[Finding] = []
    try:
        project.options()
    except UserError as failure:
        return [from_error("src/options.py", failure)], None
    try:
        destination = destination or request.dry_destination(job)
        body = request.training_request(job, project, destination, request.job_name(job))
    except UserError as failure:
        return [from_error("job.toml", failure)], None
    try:
        aws.reject(body)
    except UserError as failure:
        findings.append(from_error("job.toml", failure))
    if aws.wrong_types(body):
        return findings, None
    for variant in job.variants:  # a check sees one type of host; others find the same twice
        findings += [finding for check in CHECKS for finding in check(variant, body, project)]
    return list(dict.fromkeys(findings)), body


def all_findings(
    job: Job, project: Project, destination: Destination | None = None, *, offline: bool = False
) -> tuple[list[Finding], dict[str, Any] | None]:
    """All findings about a request, for preflight and for `submit`, and the request.

    Args:
        job: of job.toml.
        project: whose src/ would be sent.
        destination: role and bucket in the account; None: the account is not asked.
        offline: connect neither to AWS nor to a package index.
    """
    findings, body = offline_checks(job, project, destination)
    findings += requirements.resolved(job, project, offline=offline)
    if body and destination and not offline:
        findings += account.check(job, body, project)
    return findings, body


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
    destination, unanswered = (None, []) if offline else account.destination(job)
    findings, _ = all_findings(job, project, destination, offline=offline)
    return ordered([*findings, *unanswered], accept)
