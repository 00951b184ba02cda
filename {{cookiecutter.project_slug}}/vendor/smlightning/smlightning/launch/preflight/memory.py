"""Whether the job's model fits into its GPUs' memory, as far as that is known without torch."""

from collections.abc import Iterator

from smlightning.errors import UserError
from smlightning.launch import resources
from smlightning.launch.estimate import known as estimates
from smlightning.launch.estimate.fit import Fit
from smlightning.launch.findings import Finding, error, skipped, warning
from smlightning.launch.job import Job
from smlightning.project import Project


def memory(job: Job, project: Project) -> Iterator[Finding]:
    """A step's memory is at most a GPU's, on each kind of instance that the job may run on.

    The sizes are those that `smlightning estimate` counted of this code and these options, or a
    formula's; where neither is known nothing is said of the project's own network, and of a
    checkpoint that it is not. What is certain, weights and their state, makes an error;
    activations, which are estimated, a warning.
    """
    try:
        options = estimates.options_of(job, project)
    except UserError:
        return  # `hyperparameters` says so
    known = estimates.remembered(job, project, options)
    known = known or estimates.by_formula(job, project, options)
    if known is None:
        if "model_name" in job.hyperparameters and resources.gpu_memory(job):
            problem = f"the size of {options.get('model_name')!r} is not known here"
            yield skipped("memory", problem, "python -m smlightning estimate counts it")
        return
    for alternative in resources.alternatives(job):
        run = estimates.run_of(alternative, options)
        gpu_memory = resources.gpu_memory(alternative)
        if run is None or gpu_memory is None:
            continue
        fit = Fit(known.variants, run, gpu_memory, estimates.may_shard(alternative, options))
        if fit.fits:
            continue
        least = fit.memory.certain
        if known.source != "counted":
            least -= fit.memory.optimizer  # a formula assumes AdamW
        level = error if least > gpu_memory else warning
        kinds = " or ".join(resources.types(alternative))
        yield level("memory", f"{fit.problem} of {kinds}", fit.cure)
