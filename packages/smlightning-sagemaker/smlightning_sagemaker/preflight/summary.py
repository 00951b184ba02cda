"""A job in one line, and preflight's last line."""

from collections.abc import Iterable

from smlightning.options import declared_options
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job import images, instances, launchers
from smlightning_sagemaker.job.job import UNKNOWN_HOSTS, Job
from smlightning_sagemaker.project import Project

ACCUMULATE = "accumulate_grad_batches"


def summary(job: Job, project: Project) -> str:
    """Hosts, launcher, image, ranks, and the global batch that the learning rate is for."""
    if job.other_hosts:
        return f"job     {UNKNOWN_HOSTS}"
    launcher, profile = launchers.launcher(job), images.profile(job)
    image = f"torch {profile.torch} on Python {profile.python}" if profile else job.image
    line = f"job     {job.instance_count} × {job.instance_type}, {launcher}, {image}"
    gpus = instances.gpus(job.instance_type)
    batch, accumulated = (option(job, project, name) for name in ("batch_size", ACCUMULATE))
    if gpus is None or batch is None:
        return line
    processes = 1 if launcher == "none" else max(gpus, 1)
    ranks = job.instance_count * processes
    factors = [f"{ranks} ranks", f"batch_size {batch}"]
    if accumulated and accumulated > 1:
        factors.append(f"{ACCUMULATE} {accumulated}")
    total = ranks * batch * (accumulated or 1)
    return f"{line}; {' × '.join(factors)} = global batch {total}"


def passed(results: Iterable[Finding], *, offline: bool = False) -> str:
    """The last line of preflight without errors; it says if no account was checked."""
    if offline:
        return "preflight passed, without the account: role, network and data were not checked"
    if any(finding.key == "AWS" and finding.level == "skipped" for finding in results):
        return "preflight passed, without the account: see AWS above"
    return "preflight passed"


def option(job: Job, project: Project, name: str) -> int | None:
    """A whole number among the options of the job; None where train.py has no such option."""
    declared = declared_options(project.options().cls).get(name)
    value = job.hyperparameters.get(name, declared.default if declared else None)
    return value if isinstance(value, int) else None
