"""What is wrong with a job before it is paid for: job.toml, the request, and src/.

A check is a function that yields findings. Those of JOB_CHECKS read the job and the project; those
of REQUEST_CHECKS judge the very request that is sent, and run where one can be built of the job
and its values are of AWS's types.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, connections, request, requirements
from smlightning.launch.findings import Finding, from_error, ordered, refused
from smlightning.launch.job import Job, JobError
from smlightning.launch.preflight import (
    channels,
    cluster,
    hyperparameters,
    image,
    members,
    memory,
    secrets,
    settings,
    source,
)
from smlightning.launch.preflight.summary import rehearsal, summary
from smlightning.launch.request import Destination
from smlightning.project import Project

__all__ = ["JOB_CHECKS", "REQUEST_CHECKS", "offline_checks", "rehearsal", "run", "summary"]

JobCheck = Callable[[Job, Project], Iterator[Finding]]
RequestCheck = Callable[[Job, dict[str, Any], Project], Iterator[Finding]]

JOB_CHECKS: tuple[JobCheck, ...] = (
    cluster.region,
    cluster.instance,
    cluster.launcher,
    cluster.ring,
    cluster.sharding,
    cluster.capacity,
    image.image,
    image.options,
    image.packages,
    settings.misplaced,
    settings.times,
    settings.spot,
    settings.names,
    settings.checkpoints,
    settings.network,
    members.created,
    channels.keys,
    channels.channel_names,
    channels.unread_channels,
    channels.option_paths,
    hyperparameters.hyperparameters,
    hyperparameters.conflicts,
    memory.memory,
    source.files,
    source.code,
    source.monitor,
    requirements.of_pip,
    requirements.named,
    requirements.locked,
    members.unusable,
)
REQUEST_CHECKS: tuple[RequestCheck, ...] = (
    members.exclusive,
    members.environment,
    members.isolation,
    members.offline_hub,
    members.tags,
    members.partitions,
    members.documented,
    members.disk_key,
    secrets.visible,
    channels.addresses,
    channels.file_systems,
    channels.groups,
    members.places,
    members.default_buckets,
)


def offline_checks(
    job: Job, project: Project, destination: Destination | None = None
) -> tuple[list[Finding], dict[str, Any] | None]:
    """The findings that need no network, and the request if one can be made.

    `submit` sends this very request, and nothing that is refused here.

    Args:
        job: of job.toml.
        project: whose src/ would be sent.
        destination: where the job runs; without one, a dry run's.
    """
    findings = [finding for check in JOB_CHECKS for finding in check(job, project)]
    try:
        destination = destination or request.dry_destination(job)
        body = request.training_request(job, project, destination, request.job_name(job))
    except JobError as failure:
        if not refused(findings):  # else it is one of these
            findings += failure.findings
        return findings, None
    except UserError as failure:
        if not refused(findings):
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
    also: Iterable[Finding] = (),
    sender: str = "",
) -> list[Finding]:
    """All findings, errors first.

    Args:
        job: of job.toml.
        project: whose src/ would be sent.
        offline: neither AWS nor a package index is asked.
        accept: keys whose errors become warnings.
        also: further findings.
        sender: the role that will send the job, by name or ARN; empty: the caller will.
    """
    from smlightning.launch import account

    findings, body = offline_checks(job, project)
    findings += also
    findings += requirements.resolved(job, project, offline=offline)
    if body and not offline:
        outside = connections.connections(job, body, project)
        findings += account.check(job, body, sender=sender, connections=outside)
    return ordered(findings, accept)
