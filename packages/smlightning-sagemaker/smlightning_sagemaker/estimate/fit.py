"""Findings of a job that does not fit into its GPUs or hosts, and changes with which it fits."""

from collections.abc import Iterator
from dataclasses import replace

from smlightning_sagemaker.estimate.known import Known, may_shard, memory_of_host, run_of
from smlightning_sagemaker.estimate.sizes import COPIES, STATE, Memory, Run, gib, memory, total
from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws, instances
from smlightning_sagemaker.job.job import Job

# The share of a memory that a job may fill. On a GPU the rest is for CUDA's context, buffers of
# cuBLAS and NCCL, and fragments; on a host for the system and SageMaker's agents. Assumed.
USABLE = 0.9
SHOWN = 4  # families of instances in a sentence


def findings(job: Job, known: Known) -> Iterator[Finding]:
    """Problems with the memory of each kind of instance that the job may run on."""
    run = run_of(job, known.options)
    if run is not None:
        held = memory_of_host(job, known, run)
        yield from filter(None, (gpu_finding(job, known, run), host_finding(job, held)))


def gpu_finding(job: Job, known: Known, run: Run) -> Finding | None:
    """An error if the model's state does not fit into a GPU, a warning if a whole step does not.

    None if it fits, or if the GPU's memory is not known.
    """
    gpu_memory = instances.gpu_memory(job.instance_type)
    held = memory(known.sizes, run)
    if gpu_memory is None or total(held) <= USABLE * gpu_memory:
        return None
    level = error if total(held, *STATE) > gpu_memory else warning
    problem = (
        f"a step of batch_size {run.batch_size} needs {gib(total(held))} on each rank "
        f"({gib(total(held, *STATE))} for weights, gradients and optimizer state); a GPU of "
        f"{job.instance_type} has {gib(USABLE * gpu_memory)} for it"
    )
    families = [
        family
        for family in instances.families_with(int(total(held) / USABLE))
        if not family.startswith(("p2", "p3"))
    ]
    cures = changed_options(known, run, USABLE * gpu_memory, may_shard(job, known.options))
    if families:
        cures.append(f"instances of {' or '.join(families[:SHOWN])}")
    cures.append("gradient_checkpointing, if the project has this option")
    return level("memory", problem, f"estimate it with {', or '.join(cures)}")


def changed_options(known: Known, run: Run, usable: float, sharding: bool) -> list[str]:
    """Options with which a step fits: FSDP over all ranks, else a smaller batch.

    A smaller batch comes with the accumulation that keeps the global batch.
    """
    divided = replace(run, shards=run.ranks)
    if sharding and total(memory(known.sizes, divided)) <= usable:
        return ["--strategy fsdp" if run.shards == 1 else "--shard_size 0"]
    for batches in range(2, run.batch_size + 1):
        batch_size, rest = divmod(run.batch_size, batches)
        if rest:
            continue
        if total(memory(known.sizes, replace(run, batch_size=batch_size))) <= usable:
            accumulated = batches * run.accumulate
            return [f"--batch_size {batch_size} --accumulate_grad_batches {accumulated}"]
    return []


def host_finding(job: Job, held: Memory) -> Finding | None:
    """An error if the copies of weights do not fit into a host, a warning if all of it does not.

    None if it fits, or if the host's memory is not known.
    """
    kind = job.instance_type
    main_memory = instances.host_memory(kind)
    if main_memory is None or total(held) <= USABLE * main_memory:
        return None
    level = error if total(held, *COPIES) > main_memory else warning
    problem = (
        f"a host needs {gib(total(held))} of main memory "
        f"({gib(total(held, 'snapshot', 'best'))} for copies of checkpoint and best weights); "
        f"{kind} has {gib(USABLE * main_memory)} for it"
    )
    kinds = aws.shape("TrainingInstanceType").enum
    larger = instances.larger_hosts(kind, int(total(held) / USABLE), kinds)
    cure = f"it fits with {larger[0]}" if larger else "use another family of instances"
    return level("memory", problem, f"{cure}; --strategy fsdp and fewer num_workers need less")
