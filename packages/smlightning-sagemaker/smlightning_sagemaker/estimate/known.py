"""The sizes of a job's model, which a process with torch counts."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smlightning.errors import UserError
from smlightning.options import parse_command_line
from smlightning_sagemaker.estimate.sizes import Memory, Run, Sizes, host_memory
from smlightning_sagemaker.job import instances, launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

LOADERS = 2  # that keep their workers while it trains: for training and for validation
MOST_SECONDS = 900  # for counting, and for preparing the data the first time
# Options of train.py that do not matter when only sizes are counted.
INSTEAD: dict[str, Any] = {
    "strategy": "ddp",
    "shard_size": 0,
    "compile": False,
    "resume": "never",
    "num_workers": 0,
}


@dataclass(frozen=True)
class Known:
    """Counted sizes of a job."""

    options: dict[str, Any]  # of src/train.py
    sizes: Sizes
    samples: int | None  # for training in an epoch; None: the data has no length
    tokens: int  # of the longest sample; 0: samples are no texts


def options_of(job: Job, project: Project, more: Sequence[str] = ()) -> dict[str, Any]:
    """Every option of src/train.py, as the job sets it, or its default.

    Args:
        job: of job.toml.
        project: whose src/options.py declares the options.
        more: words of a command line that replace the job's own.

    Raises:
        UserError: train.py has no such option, or does not take the value.
    """
    words = [f"--{name}={value}" for name, value in job.hyperparameters.items()]
    return vars(parse_command_line(project.options().cls, [*words, *more]))


def may_shard(job: Job, options: Mapping[str, Any]) -> bool:
    """Whether the job can train with --strategy fsdp, which SMDDP's library cannot."""
    return "strategy" in options and launchers.launcher(job) != "smddp"


def run_of(job: Job, options: Mapping[str, Any]) -> Run | None:
    """Facts about the job's training; None if its GPUs or its batch are unknown.

    Both examples have options of these names; a project with others has no estimate.
    """
    gpus = instances.gpus(job.instance_type)
    batch, accumulate = options.get("batch_size"), options.get("accumulate_grad_batches", 1)
    if gpus is None or not isinstance(batch, int) or not isinstance(accumulate, int):
        return None
    processes = 1 if launchers.launcher(job) == "none" else max(gpus, 1)
    ranks = job.instance_count * processes
    shard_size = int(options.get("shard_size", 0))
    return Run(
        batch_size=batch,
        ranks=ranks,
        shards=(shard_size or ranks) if options.get("strategy") == "fsdp" else 1,
        mixed=precision(job, options) == "bf16-mixed",
        accumulate=accumulate,
    )


def memory_of_host(job: Job, known: Known, run: Run) -> Memory:
    """Bytes of main memory on the first host of a job that trains so."""
    gpus = instances.gpus(job.instance_type) != 0
    workers = int(known.options.get("num_workers", 0))
    if workers < 0:
        workers = 2 if gpus else 0  # as data/batches.py has it
    ranks = run.ranks // job.instance_count
    return host_memory(known.sizes, run, ranks, LOADERS * workers, gpus)


def precision(job: Job, options: Mapping[str, Any]) -> str:
    """The precision on the job's instances, as the CPU here has it: 16 bits are bf16-mixed."""
    chosen = str(options.get("precision", "32-true"))
    if chosen == "auto":
        return "bf16-mixed" if instances.gpus(job.instance_type) else "32-true"
    return "bf16-mixed" if chosen == "16-mixed" else chosen


def counted(
    job: Job,
    project: Project,
    options: Mapping[str, Any],
    channels: Mapping[str, Path] | None = None,
) -> Known:
    """Count the sizes of the project's model.

    Args:
        job: of job.toml.
        project: whose src/train.py is run.
        options: of `options_of`.
        channels: folders with data of the job's channels.

    Raises:
        UserError: the model or its data cannot be built here.
    """
    instead = {**INSTEAD, "precision": precision(job, options)}
    here = {name: instead.get(name, value) for name, value in options.items()}
    folders = {name: folder.resolve() for name, folder in (channels or {}).items()}
    answer = _ask({"src": str(project.src.resolve()), "options": here}, project, folders)
    sizes = Sizes.from_dict(answer["sizes"])
    return Known(dict(options), sizes, answer["samples"], answer["tokens"])


def _ask(
    request: Mapping[str, Any], project: Project, channels: Mapping[str, Path]
) -> dict[str, Any]:
    """The answer of a process of `counting`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SM_")}
    paths = [str(Path(__file__).parents[3]), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env["CUDA_VISIBLE_DEVICES"] = ""
    for name, folder in channels.items():
        env[f"SM_CHANNEL_{name.upper()}"] = str(folder)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "smlightning_sagemaker.estimate.counting"],
            input=json.dumps(request),
            env=env,
            cwd=project.root,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"counting the model's sizes took more than {MOST_SECONDS} s",
            "pass a part of the data: --channel NAME=FOLDER, or -- --dataset FILE",
        ) from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        raise UserError(
            f"the model's sizes could not be counted: {last}",
            "check that make train runs with these options",
        )
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
