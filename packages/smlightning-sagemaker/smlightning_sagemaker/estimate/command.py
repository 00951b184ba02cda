"""``smlightning estimate``: whether the job's model fits, and how long it trains."""

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.estimate import known as estimates
from smlightning_sagemaker.estimate.fit import findings
from smlightning_sagemaker.estimate.known import Known
from smlightning_sagemaker.estimate.sizes import Memory, Run, gib, memory, total
from smlightning_sagemaker.job import instances
from smlightning_sagemaker.job import job as jobs
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import paths
from smlightning_sagemaker.project import Project


def estimate(arguments: argparse.Namespace, project: Project) -> int:
    """Print the estimate; 1 if the job does not fit.

    Raises:
        UserError: the sizes cannot be counted, or the instances are not known.
    """
    job = jobs.load(arguments.job or project.job_file, project)
    options = estimates.options_of(job, project, arguments.options)
    channels = jobs.channel_folders(arguments.channel, job)
    if options.get("dataset") == paths.DATASET and paths.DATASET not in channels:
        problem = f"the dataset is the job's channel {paths.DATASET}, whose data is not here"
        raise UserError(problem, f"pass some of its data: --channel {paths.DATASET}=FOLDER")
    run = estimates.run_of(job, options)
    if run is None:
        raise UserError(
            f"the number of ranks on {job.instance_type}, or the batch size of a rank, is unknown",
            "use instances with the same number of GPUs, and an option batch_size",
        )
    known = estimates.counted(job, project, options, channels)
    held, on_host = memory(known.sizes, run), estimates.memory_of_host(job, known, run)
    wrong = list(findings(job, known))
    content = {
        "sizes": asdict(known.sizes),
        "run": {**asdict(run), "global_batch": run.global_batch},
        "tokens": known.tokens,
        "gpu_memory": instances.gpu_memory(job.instance_type),
        "memory": {**held, "total": total(held)},
        "main_memory": instances.host_memory(job.instance_type),
        "host": {**on_host, "total": total(on_host)},
        "fits": not wrong,
        **length(known, run, arguments.samples_per_second),
    }
    verdict: list[object] = [*wrong] or ["fits    into GPUs and hosts, as far as known"]
    print(*shown(job, known, run, content), *verdict, sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return int(bool(wrong))


def length(known: Known, run: Run, speed: float | None) -> dict[str, Any]:
    """Samples of an epoch, optimizer steps and hours, as far as they are known.

    Raises:
        UserError: the speed is not positive.
    """
    if speed is not None and not 0 < speed < math.inf:
        raise UserError(f"--samples_per_second is {speed:g}", "pass a number above 0")
    if not known.samples:
        return {"samples": None, "steps": None, "hours": None}
    epochs, limit = int(known.options.get("epochs", 1)), int(known.options.get("max_steps", -1))
    whole = math.ceil(known.samples / run.global_batch) * epochs
    steps = min(whole, limit) if limit > 0 else whole
    hours = known.samples * epochs * (steps / whole) / speed / 3600 if speed and whole else None
    return {"samples": known.samples, "steps": steps, "hours": hours}


def shown(job: Job, known: Known, run: Run, content: dict[str, Any]) -> list[str]:
    """The lines that are printed."""
    sizes, gpu_memory = known.sizes, content["gpu_memory"]
    strategy = f"fsdp among {run.shards}" if run.shards > 1 else "ddp"
    tokens = f" × {known.tokens} tokens" if known.tokens else ""
    length = f"{content['steps']:,} of {run.global_batch:,} samples" if content["steps"] else "?"
    return [
        f"model   {sizes.parameters:,} parameters, {sizes.trainable:,} of them trained; "
        f"a checkpoint has {gib(sizes.checkpoint_bytes)}",
        f"a rank  of {run.ranks} on {job.instance_count} × {job.instance_type}, {strategy}, "
        f"{16 if run.mixed else 32} bits, batch_size {run.batch_size}{tokens}; "
        f"its GPU has {gib(gpu_memory) if gpu_memory else 'no known memory'}",
        *rows(content["memory"]),
        f"a host  has {gib(content['main_memory'] or 0)} of main memory",
        *rows(content["host"]),
        f"steps   {length}",
        f"time    {content['hours']:.2f} h"
        if content["hours"]
        else "time    pass --samples_per_second; a job's log has it",
    ]


def rows(held: Memory) -> list[str]:
    """A line for each purpose that takes memory."""
    return [f"        {name:<12}{gib(size):>12}" for name, size in held.items() if size]
