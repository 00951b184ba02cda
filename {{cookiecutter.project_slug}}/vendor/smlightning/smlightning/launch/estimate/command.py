"""``smlightning estimate``: whether the job's model fits, and how long it trains."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, history, instances, launchers, resources
from smlightning.launch import job as jobs
from smlightning.launch.estimate import known as estimates
from smlightning.launch.estimate.fit import Fit
from smlightning.launch.estimate.known import Known
from smlightning.launch.estimate.sizes import Run, gib
from smlightning.launch.findings import cure_for_unknown_name
from smlightning.launch.follow import describe
from smlightning.launch.job import Job
from smlightning.project import Project


def estimate(arguments: argparse.Namespace, project: Project) -> int:
    """Print the estimate; 1 where the job does not fit.

    Raises:
        UserError: the sizes are not known, or the instances are not.
    """
    job = jobs.load(arguments.job or project.job_file, project)
    options = estimates.options_of(job, project, arguments.options)
    channels = channel_folders(arguments.channel, job)
    known = sizes_of(job, project, options, channels)
    if known.source == "counted" and not arguments.options:
        estimates.remember(known, job, project, options, channels)
    run = estimates.run_of(job, options)
    if run is None:
        kinds = " or ".join(resources.types(job))
        raise UserError(
            f"how many GPUs {kinds} has, or the batch of a rank, is not known here",
            "take an instance type that is known, and an option batch_size",
        )
    gpu_memory = resources.gpu_memory(job)
    sharding = estimates.may_shard(job, options)
    fit = Fit(known.variants, run, gpu_memory, sharding) if gpu_memory else None
    speed = throughput(arguments, project, run)
    for line in [*model_lines(known), *memory_lines(job, known, run, fit)]:
        print(line)
    for line in length_lines(known, run, speed):
        print(line)
    if arguments.json:
        content = as_dict(known, run, fit, speed)
        arguments.json.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return int(fit is not None and not fit.fits)


def sizes_of(
    job: Job, project: Project, options: dict[str, Any], channels: dict[str, Path]
) -> Known:
    """Counted, of the project's own model and data; by formula where there is no data here."""
    try:
        return estimates.counted(job, project, options, channels)
    except UserError as failure:
        known = estimates.by_formula(job, project, options)
        if known is None:
            raise
        print(f"note    by formula: {failure.problem}")
        return known


def channel_folders(words: Sequence[str], job: Job) -> dict[str, Path]:
    """``NAME=DIR`` of each --channel, checked."""
    folders = {}
    for word in words:
        name, _, folder = word.partition("=")
        if name not in job.channels:
            problem = f"--channel {name} is not among [channels] of job.toml"
            raise UserError(problem, cure_for_unknown_name(name, job.channels))
        if not folder or not Path(folder).is_dir():
            raise UserError(f"--channel {word}: no such folder", "write NAME=DIR")
        folders[name] = Path(folder)
    return folders


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
    of_what = "of the project's own model" if known.source == "counted" else "of a configuration"
    line = f"model   {sizes.parameters:,} parameters, {trained} of them trained"
    how = "counted" if known.source == "counted" else "by formula,"
    lines = [f"{line} ({how} {of_what})"]
    lines.append(f"        a checkpoint has {gib(sizes.checkpoint_bytes)}")
    return lines


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
        kinds = " or ".join(resources.types(job))
        return [*lines, f"        how much memory {kinds} has is not known here"]
    if fit.fits:
        return [*lines, f"fits    into a GPU of {gib(fit.gpu_memory)}"]
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


def as_dict(known: Known, run: Run, fit: Fit | None, speed: float | None) -> dict[str, Any]:
    """What `--json` writes."""
    content: dict[str, Any] = {
        "source": known.source,
        "sizes": known.sizes.to_dict(),
        "run": {**asdict(run), "global_batch": run.global_batch},
        "tokens": known.tokens,
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
