"""A job in one line, and preflight's last line."""

from collections.abc import Sequence

from smlightning.errors import UserError
from smlightning.options import declared_options
from smlightning_sagemaker.findings import Finding, has_errors
from smlightning_sagemaker.job import images, instances, launchers
from smlightning_sagemaker.job.job import Hosts, Job
from smlightning_sagemaker.project import Project

ACCOUNT = ("role", "keys", "secrets", "network", "data")  # what only the account shows
ACCUMULATE = "accumulate_grad_batches"


def summary(job: Job, project: Project) -> str:
    """Hosts, launcher, image, ranks, and the global batch that the learning rate is for."""
    launcher, profile = launchers.launcher(job), images.profile(job)
    image = f"torch {profile.torch} on Python {profile.python}" if profile else job.image
    clusters = job.clusters
    hosts = " or ".join(" + ".join(f"{h.count} × {h.instance_type}" for h in c) for c in clusters)
    line = f"job     {hosts}, {launcher}, {image}"
    batch, accumulated = (option(job, project, name) for name in ("batch_size", ACCUMULATE))
    counts = {processes(cluster, launcher) for cluster in clusters}
    ranks = counts.pop()
    if ranks is None or counts or batch is None:
        return line
    factors = [f"{ranks} ranks", f"batch_size {batch}"]
    if accumulated and accumulated > 1:
        factors.append(f"{ACCUMULATE} {accumulated}")
    total = ranks * batch * (accumulated or 1)
    return f"{line}; {' × '.join(factors)} = global batch {total}"


def processes(cluster: Sequence[Hosts], launcher: str) -> int | None:
    """The ranks of a cluster; None if the GPUs of a type are not known."""
    gpus = [instances.gpus(hosts.instance_type) for hosts in cluster]
    if None in gpus:
        return None
    each = [1 if launcher == "none" else max(count or 0, 1) for count in gpus]
    return sum(hosts.count * count for hosts, count in zip(cluster, each, strict=True))


def verdict(results: Sequence[Finding], *, offline: bool = False) -> str:
    """The last line of preflight: whether it passed, and what was not checked, for any reason."""
    line = "preflight failed" if has_errors(results) else "preflight passed"
    skipped = [finding.key for finding in results if finding.level == "skipped"]
    if offline or "AWS" in skipped:
        line += ", without the account"
        skipped = [*ACCOUNT, *(key for key in skipped if key != "AWS")]
    unchecked = ", ".join(dict.fromkeys(skipped))
    line = f"{line}; not checked: {unchecked}" if unchecked else line
    if has_errors(results):
        line += ". Fix the errors above, or pass --accept KEY for one that does not apply"
    return line


def option(job: Job, project: Project, name: str) -> int | None:
    """A whole number among the options of the job; None where train.py has no such option."""
    try:
        declared = declared_options(project.options().cls).get(name)
    except UserError:
        return None  # preflight reports it
    value = job.hyperparameters.get(name, declared.default if declared else None)
    return value if isinstance(value, int) else None
