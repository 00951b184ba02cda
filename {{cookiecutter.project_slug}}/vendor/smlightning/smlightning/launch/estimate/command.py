"""``smlightning estimate``: whether the job's model fits, and how long it trains."""

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, history, instances, launchers, resources
from smlightning.launch import job as jobs
from smlightning.launch.estimate import known as estimates
from smlightning.launch.estimate.fit import Fit, HostFit
from smlightning.launch.estimate.known import Known
from smlightning.launch.estimate.sizes import Run, gib
from smlightning.launch.follow import describe
from smlightning.launch.job import Job
from smlightning.launch.preflight import paths
from smlightning.project import Project


def estimate(arguments: argparse.Namespace, project: Project) -> int:
    """Print the estimate; 1 where the job does not fit.

    Raises:
        UserError: the sizes are not known, or the instances are not.
    """
    job = jobs.load(arguments.job or project.job_file, project)
    options = estimates.options_of(job, project, arguments.options)
    channels = jobs.channel_folders(arguments.channel, job)
    if options.get("dataset") == paths.DATASET and paths.DATASET not in channels:
        problem = f"dataset {paths.DATASET} is a channel of the job, whose data is not here"
        raise UserError(problem, f"name a folder with some of it: --channel {paths.DATASET}=FOLDER")
    known = estimates.counted(job, project, options, channels)
    if not arguments.options:
        estimates.remember(known, job, project, options, channels)
    run = estimates.run_of(job, options)
    if run is None:
        kinds = " and ".join(resources.types(job))
        raise UserError(
            f"the ranks of {kinds}, or the batch of a rank, cannot be told: the GPUs of a host are "
            "not known here, or differ between groups",
            "take types that are known, with as many GPUs each, and an option batch_size",
        )
    gpu_memory = resources.gpu_memory(job)
    sharding = estimates.may_shard(job, options)
    fit = Fit(known.variants, run, gpu_memory, sharding) if gpu_memory else None
    host = HostFit.of(job, options, known, run)
    speed = throughput(arguments, project, run)
    lines = [*model_lines(known), *memory_lines(job, known, run, fit), *host_lines(host)]
    for line in lines:
        print(line)
    for line in length_lines(known, run, speed):
        print(line)
    if arguments.json:
        content = as_dict(known, run, fit, host, speed)
        arguments.json.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return int(not host.fits or (fit is not None and not fit.fits))


def throughput(arguments: argparse.Namespace, project: Project, run: Run) -> float | None:
    """Samples per second of the whole job: as given, or as an earlier job's, rank for rank.

    Raises:
        UserError: it is no speed, or the earlier job has told none.
    """
    given: float | None = arguments.samples_per_second
    if given is not None and not 0 < given < math.inf:
        raise UserError(f"--samples_per_second {given:g} is no speed", "give a number above 0")
    if given or not arguments.like:
        return given
    name = arguments.like
    region = history.region_of(project, name, job_file=arguments.job)
    described = describe(name, aws.client("sagemaker", region))
    metrics = {
        metric["MetricName"]: metric["Value"] for metric in described.get("FinalMetricDataList", [])
    }
    measured = metrics.get("samples_per_second")
    if not measured:
        raise UserError(
            f"{name} has told no samples_per_second", "name another job, or --samples_per_second"
        )
    return float(measured) * run.ranks / ranks_of(described)


def ranks_of(described: dict[str, Any]) -> int:
    """How many ranks an earlier job had: a GPU that no launcher gives a process trains nothing.

    Args:
        described: DescribeTrainingJob's answer.
    """
    cluster = resources.candidates(described["ResourceConfig"])[0]
    launched = launchers.has_flag(described.get("HyperParameters", {}))
    return sum(
        group.count * ((instances.gpus(group.instance_type) or 1) if launched else 1)
        for group in cluster
    )


def model_lines(known: Known) -> list[str]:
    sizes = known.sizes
    trained = "all" if sizes.trainable == sizes.parameters else f"{sizes.trainable:,}"
    return [
        f"model   {sizes.parameters:,} parameters, {trained} of them trained",
        f"        a checkpoint has {gib(sizes.checkpoint_bytes)}",
    ]


def memory_lines(job: Job, known: Known, run: Run, fit: Fit | None) -> list[str]:
    """What a rank holds, a line each, and whether it fits."""
    bits = "16 bits" if run.mixed else "32 bits"
    strategy = f"fsdp among {run.shards}" if run.shards > 1 else "ddp"
    tokens = f" × {known.tokens} tokens" if known.tokens else ""
    lines = [
        f"a rank  of {run.ranks} on {resources.shown(resources.groups(job))}, "
        f"{strategy}, {bits}, batch_size {run.batch_size}{tokens}"
    ]
    held = (fit or Fit(known.variants, run, 0)).memory
    for name, size in asdict(held).items():
        if size:
            lines.append(f"        {name:<12}{gib(size):>12}")
    largest = " × ".join(map(str, known.largest))
    if largest:
        lines[-1] += f"  (a step's largest tensor: {largest})"
    lines.append(f"        {'together':<12}{gib(held.total):>12}")
    if fit is None:
        if resources.gpus(job) == 0:
            return lines
        kinds = " or ".join(resources.types(job))
        return [*lines, f"        how much memory a GPU of {kinds} has is not known here"]
    if fit.fits:
        return [*lines, f"fits    into a GPU of {gib(fit.gpu_memory)}"]
    return [*lines, f"error   {fit.problem}; {fit.cure}"]


def host_lines(fit: HostFit) -> list[str]:
    """What a host holds, a line each, and whether it fits."""
    workers = f", {fit.host.workers} loader workers each" if fit.host.workers else ""
    ranks = f"{fit.host.ranks} {'rank' if fit.host.ranks == 1 else 'ranks'}"
    lines = [f"a host  of {ranks}{workers}, in main memory"]
    for name, size in {**asdict(fit.memory), "together": fit.memory.total}.items():
        if size:
            lines.append(f"        {name:<12}{gib(size):>12}")
    if fit.main_memory is None:
        return [*lines, f"        how much {fit.instance_type} has is not known here"]
    if fit.fits:
        return [*lines, f"fits    into the {gib(fit.main_memory)} of {fit.instance_type}"]
    return [*lines, f"error   {fit.problem}; {fit.cure}"]


def length_lines(known: Known, run: Run, speed: float | None) -> list[str]:
    """Steps, and hours where a throughput is known."""
    length = known.length
    if length is None:
        return ["steps   not known: the data's samples were not counted"]
    lines = [
        f"steps   {length.steps(run):,} of {run.global_batch:,} samples; an epoch has "
        f"{length.samples:,}"
    ]
    if speed:
        hours = length.hours(run, speed)
        lines.append(f"time    {hours:.2f} h of training at {speed:,.0f} samples per second")
    else:
        lines.append("time    not known: --samples_per_second N, or --like an earlier JOB")
    return lines


def as_dict(
    known: Known, run: Run, fit: Fit | None, host: HostFit, speed: float | None
) -> dict[str, Any]:
    """What `--json` writes."""
    content: dict[str, Any] = {
        "sizes": known.sizes.to_dict(),
        "run": {**asdict(run), "global_batch": run.global_batch},
        "tokens": known.tokens,
        "host": {
            "ranks": host.host.ranks,
            "main_memory": host.main_memory,
            "memory": {**asdict(host.memory), "total": host.memory.total},
            "fits": host.fits,
            "ways": [] if host.fits else [way.options for way in host.ways],
        },
    }
    if fit:
        content |= {
            "gpu_memory": fit.gpu_memory,
            "memory": {**asdict(fit.memory), "total": fit.memory.total},
            "fits": fit.fits,
            "ways": [] if fit.fits else [way.options for way in fit.ways],
        }
    if known.length:
        content |= {"steps": known.length.steps(run), "samples": known.length.samples}
        content["hours"] = known.length.hours(run, speed) if speed else None
    return content
