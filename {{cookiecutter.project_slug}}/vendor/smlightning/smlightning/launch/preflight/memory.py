"""Whether a job fits into the memory of its GPUs and hosts, as far as known without torch."""

from collections.abc import Iterator

from smlightning.errors import UserError
from smlightning.launch import resources
from smlightning.launch.estimate import known as estimates
from smlightning.launch.estimate.fit import gpu_finding, host_finding
from smlightning.launch.findings import Finding, skipped
from smlightning.launch.job import Job
from smlightning.project import Project


def memory(job: Job, project: Project) -> Iterator[Finding]:
    """The job fits on each kind of instance that it may run on.

    The sizes are those that `smlightning estimate` counted for this code, these options and data.
    """
    try:
        options = estimates.options_of(job, project)
    except UserError:
        return  # `hyperparameters` reports it
    known = estimates.remembered(job, project, options)
    if known is None:
        if "model_name" in job.hyperparameters and resources.gpu_memory(job):
            problem = f"the size of {options.get('model_name')!r} is not known here"
            yield skipped("memory", problem, "python -m smlightning estimate counts it")
        return
    for alternative in resources.alternatives(job):
        run = estimates.run_of(alternative, options)
        if run is not None:
            held = estimates.memory_of_host(alternative, known, run)
            findings = gpu_finding(alternative, known, run), host_finding(alternative, held)
            yield from filter(None, findings)
