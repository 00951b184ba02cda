"""Whether a job fits into the memory of its GPUs and hosts, as far as known without torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import resources
from smlightning.launch.estimate import known as estimates
from smlightning.launch.estimate.fit import Fit, HostFit
from smlightning.launch.estimate.known import Known
from smlightning.launch.estimate.sizes import Run
from smlightning.launch.findings import Finding, error, skipped, warning
from smlightning.launch.job import Job
from smlightning.project import Project


def memory(job: Job, project: Project) -> Iterator[Finding]:
    """The job fits on each kind of instance that it may run on: its step into a GPU, and what its
    processes hold into the host.

    The sizes are those that `smlightning estimate` counted of this code and these options. What
    follows from shapes, weights and their state, makes an error; activations and processes, which
    are estimated, a warning.
    """
    try:
        options = estimates.options_of(job, project)
    except UserError:
        return  # `hyperparameters` says so
    known = estimates.remembered(job, project, options)
    if known is None:
        if "model_name" in job.hyperparameters and resources.gpu_memory(job):
            problem = f"the size of {options.get('model_name')!r} is not known here"
            yield skipped("memory", problem, "python -m smlightning estimate counts it")
        return
    for alternative in resources.alternatives(job):
        run = estimates.run_of(alternative, options)
        if run is not None:
            yield from _of_gpus(alternative, options, known, run)
            yield from _of_hosts(HostFit.of(alternative, options, known, run))


def _of_gpus(job: Job, options: Mapping[str, Any], known: Known, run: Run) -> Iterator[Finding]:
    gpu_memory = resources.gpu_memory(job)
    if gpu_memory is None:
        return
    fit = Fit(known.variants, run, gpu_memory, estimates.may_shard(job, options))
    if not fit.fits:
        level = error if fit.is_certain else warning
        yield level("memory", f"{fit.problem} of {' or '.join(resources.types(job))}", fit.cure)


def _of_hosts(fit: HostFit) -> Iterator[Finding]:
    if fit.main_memory is None:
        problem = f"how much main memory {fit.instance_type} has is not known here"
        yield skipped("memory", problem, "python -m smlightning estimate says what a host needs")
    elif not fit.fits:
        level = error if fit.is_certain else warning
        yield level("memory", fit.problem, fit.cure)
