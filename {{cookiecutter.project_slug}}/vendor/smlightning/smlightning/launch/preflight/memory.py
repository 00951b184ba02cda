"""Whether a job fits into the memory of its GPUs and hosts, as far as known without torch."""

from collections.abc import Iterator

from smlightning.errors import UserError
from smlightning.launch import instances
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

    The sizes are those that `smlightning estimate` counted of this code and these options, or a
    formula's; where neither is known nothing is said of the project's own network, and of a
    checkpoint that it is not. What is certain, weights and their state, makes an error; what is
    estimated, as activations and processes are, a warning.
    """
    try:
        options = estimates.options_of(job, project)
    except UserError:
        return  # `hyperparameters` says so
    known = estimates.remembered(job, project, options)
    known = known or estimates.by_formula(job, project, options)
    if known is None:
        if "model_name" in job.hyperparameters and instances.gpu_memory(job.instance_type):
            problem = f"the size of {options.get('model_name')!r} is not known here"
            yield skipped("memory", problem, "python -m smlightning estimate counts it")
        return
    for alternative in (job, *job.alternatives):
        run = estimates.run_of(alternative, options)
        if run is not None:
            may_shard = estimates.may_shard(alternative, options)
            yield from _of_gpus(alternative.instance_type, known, run, may_shard)
            yield from _of_hosts(HostFit.of(alternative, options, known, run), known)


def _of_gpus(kind: str, known: Known, run: Run, may_shard: bool) -> Iterator[Finding]:
    gpu_memory = instances.gpu_memory(kind)
    if gpu_memory is None:
        return
    fit = Fit(known.variants, run, gpu_memory, may_shard)
    if fit.fits:
        return
    least = fit.memory.certain
    if known.source != "counted":
        least -= fit.memory.optimizer  # a formula assumes AdamW
    level = error if least > gpu_memory else warning
    yield level("memory", f"{fit.problem} of {kind}", fit.cure)


def _of_hosts(fit: HostFit, known: Known) -> Iterator[Finding]:
    if fit.main_memory is None:
        problem = f"how much main memory {fit.instance_type} has is not known here"
        yield skipped("memory", problem, "python -m smlightning estimate says what a host needs")
    elif not fit.fits:
        level = error if fit.is_certain(known.source == "counted") else warning
        yield level("memory", fit.problem, fit.cure)
