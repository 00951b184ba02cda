"""From the command line and job.toml to a plan; what contradicts itself is refused."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smlightning import hub
from smlightning.cluster.location import SMDDP_INSTANCES, runs_smddp
from smlightning.errors import UserError
from smlightning.launch import aws, images, launchers, request, requirements, resources
from smlightning.launch import job as jobs
from smlightning.launch.job import Job, channel_folders
from smlightning.launch.preflight.hyperparameters import hyperparameters as judged_options
from smlightning.project import Project
from smlightning.rehearsal import mpirun
from smlightning.rehearsal.plan import FAULTS, LOSE_HOST, STOP_HOST, Fault, Plan

BATCHES = 20  # enough for every check, and for the faults, which come in step 2
# Seconds of training: an interruption after step 2 has to come before the end.
INTERRUPTED_BATCHES = 200
LENGTHS = {"epochs", "max_steps"}  # hyperparameters by which the owner says how long it trains
CHECKPOINT_STEPS = 5  # without a checkpoint a lost host leaves nothing to resume from
MOST = 64  # hosts, and processes per host
DAY = 86400  # seconds


@dataclass(frozen=True)
class ClusterSize:
    """The size of the simulated cluster."""

    hosts: int
    processes: int
    distribution: str


def make_plan(
    arguments: argparse.Namespace, project: Project, shell: Mapping[str, str] = os.environ
) -> Plan:
    """What to rehearse.

    Raises:
        UserError: the arguments contradict each other, job.toml or this machine.
    """
    source = arguments.source_dir or project.src
    of_project = source.resolve() == project.src.resolve()
    job = jobs.load(arguments.job or project.job_file, project)
    aws.use_profile(job.profile if arguments.profile is None else arguments.profile)
    cluster = chosen_cluster(arguments, job)
    refuse_source(source)
    refuse_numbers(arguments, cluster)
    refuse_cluster(arguments, cluster)
    refuse_variables(arguments.inherit, shell)
    refuse_outputs(arguments)
    fault = chosen_fault(arguments)
    folders = channel_folders(arguments.channel, job if of_project else None)
    given = hyperparameters(arguments.hyperparameters)
    secrets = secrets_of(job)
    job, notes = rehearsed_job(job, cluster, fault, given, of_project)
    job, more = with_secrets(job, secrets, arguments.inherit)
    if of_project:
        refuse_hyperparameters(job, project)
    return Plan(
        hosts=cluster.hosts,
        processes=cluster.processes,
        distribution=cluster.distribution,
        source=source,
        request=request.dry_run(job, project),
        channels=folders,
        remote_channels=remote_channels(job, folders),
        inherit=[name for name in arguments.inherit if name not in secrets],
        secrets=job.secrets,
        image=images.profile(job),
        notes=[*notes, *more],
        fault=fault,
        batches=batches(arguments.batches, fault, given),
        timeout=arguments.timeout,
    )


def chosen_cluster(arguments: argparse.Namespace, job: Job) -> ClusterSize:
    """The command line's, else job.toml's; two processes per host where neither says."""
    distribution = arguments.distribution
    if distribution in (None, "auto"):
        distribution = launchers.launcher(job)
    hosts = resources.host_count(job) if arguments.hosts is None else arguments.hosts
    processes = arguments.processes
    if processes is None:
        processes = 1 if distribution == "none" else 2
    return ClusterSize(hosts, processes, distribution)


def chosen_fault(arguments: argparse.Namespace) -> Fault | None:
    """The fault that was asked for; people count hosts from 1, and ranks from 0."""
    numbers = fault_numbers(arguments)
    if len(numbers) > 1:
        options = " and ".join(f"--{kind}" for kind in numbers)
        raise UserError(f"{options} are mutually exclusive", "rehearse them one by one")
    for kind, number in numbers.items():
        return Fault(kind, number - 1 if kind in (STOP_HOST, LOSE_HOST) else number)
    return None


def fault_numbers(arguments: argparse.Namespace) -> dict[str, int]:
    """The faults on the command line, by kind."""
    numbers = {kind: getattr(arguments, kind.replace("-", "_")) for kind in FAULTS}
    return {kind: number for kind, number in numbers.items() if number is not None}


def batches(wanted: int | None, fault: Fault | None, given: Mapping[str, Any]) -> int:
    """Of one epoch; 0, all of all epochs, where the owner says how long it trains."""
    if wanted is not None:
        return wanted
    if LENGTHS & given.keys():
        return 0
    return INTERRUPTED_BATCHES if fault and fault.interrupts else BATCHES


def rehearsed_job(
    job: Job, cluster: ClusterSize, fault: Fault | None, given: Mapping[str, Any], of_project: bool
) -> tuple[Job, list[str]]:
    """The job as it is rehearsed, and notes on what differs from the one that is sent."""
    notes = []
    values = {**job.hyperparameters, **given}
    if not of_project:
        values = dict(given)  # job.toml's are for the project's own train.py
        job = job.replace(channels={})
    elif fault and fault.kind == LOSE_HOST:
        values = {**job.hyperparameters, "checkpoint_steps": CHECKPOINT_STEPS, **given}
    if fault and fault.kind == STOP_HOST and not job.forward_stop:
        notes.append(
            "forward_stop is false in job.toml: SageMaker's SIGTERM would not reach training; "
            "see --lose-host"
        )
        job = job.replace(forward_stop=True)
    other = [kind for kind in resources.types(job) if not runs_smddp(kind)]
    kind = ""
    if cluster.distribution == "smddp" != job.distribution and other:
        kind = SMDDP_INSTANCES[0]
        notes.append(f"SMDDP is rehearsed as on {kind}: it does not run on {other[0]}")
    without_server = {
        name: value for name, value in job.environment.items() if not name.startswith(ELSEWHERE)
    }
    changed = resources.resized(job, cluster.hosts, kind).replace(
        distribution=cluster.distribution,
        hyperparameters=values,
        hub_token_secret="",
        secrets={},
        mlflow="",
        environment=without_server,
    )
    return changed, notes


def secrets_of(job: Job) -> dict[str, str]:
    """Variable → name in Secrets Manager or Parameter Store, the hub's token with them."""
    token = {hub.TOKEN: job.hub_token_secret} if job.hub_token_secret else {}
    return {**job.secrets, **token}


def with_secrets(
    job: Job, secrets: Mapping[str, str], inherit: Sequence[str]
) -> tuple[Job, list[str]]:
    """The job with those of its secrets that are let in; the hosts read them from a stub.

    A secret that is let in by one variable fills all those that name it, as on AWS.

    Returns:
        the job, and a note on those that are not let in.
    """
    let = {name for variable, name in secrets.items() if variable in inherit}
    given = {variable: name for variable, name in secrets.items() if name in let}
    missing = [variable for variable in secrets if variable not in given]
    notes = []
    if missing:
        let_in = " ".join(f"--inherit {variable}" for variable in missing)
        names = ", ".join(missing)
        notes.append(f"AWS is not asked for secrets: export {names}, and let them in with {let_in}")
    return job.replace(secrets=given), notes


# Beginnings of variables that would reach out of this machine: an MLflow server, CodeArtifact.
ELSEWHERE = ("MLFLOW_", requirements.CODEARTIFACT)


def hyperparameters(words: Sequence[str]) -> dict[str, Any]:
    """``--epochs 1 --lr=1e-3`` as values; a number or a boolean is one if it reads like one.

    Raises:
        UserError: a word is no option, or an option has no value.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        option, equals, text = rest.pop(0).partition("=")
        if not option.startswith("--") or not (equals or rest):
            raise UserError(f"{option!r} after -- is not a hyperparameter", "write --name value")
        if not equals:
            text = rest.pop(0)
        values[option.removeprefix("--")] = hyperparameter(text)
    return values


def hyperparameter(text: str) -> str | int | float | bool:
    """The value of a word; a path that exists is absolute: hosts start in folders of their own.

    A list stays text, as in job.toml: train.py reads it.
    """
    if "/" in text and os.path.exists(text):  # noqa: PTH110  Path.exists raises for a long text
        return str(Path(text).resolve())
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, str | int | float):  # a boolean is an int, too
            return value
    return text


def remote_channels(job: Job, folders: Mapping[str, Path]) -> dict[str, str]:
    """The job's channels for which no folder is given: address by name."""
    given = {name: channel for name, channel in job.channels.items() if name not in folders}
    return {name: request.channel_address(name, channel) for name, channel in given.items()}


def refuse_source(source: Path) -> None:
    if not (source / "train.py").is_file():
        raise UserError(f"--source-dir {source} has no train.py", "name your script's folder")
    if (source / "setup.py").exists():
        raise UserError(
            f"--source-dir {source} has a setup.py, which SageMaker's toolkit would install into "
            "this environment",
            "rehearse a copy without it",
        )


def refuse_numbers(arguments: argparse.Namespace, cluster: ClusterSize) -> None:
    last_rank = cluster.hosts * cluster.processes - 1
    refuse_number("hosts", cluster.hosts, 1, MOST)
    refuse_number("processes", cluster.processes, 1, MOST)
    refuse_number("timeout", arguments.timeout, 1, DAY)
    refuse_number("batches", arguments.batches or 0, 0, 10**9)
    for kind, number in fault_numbers(arguments).items():
        if kind in (STOP_HOST, LOSE_HOST):
            refuse_number(kind, number, 1, cluster.hosts)
        else:
            refuse_number(kind, number, 0, last_rank)


def refuse_number(option: str, value: float, first: int, last: int) -> None:
    if not first <= value <= last:  # also NaN
        raise UserError(f"--{option} {value} is out of range", f"give {first} to {last}")


def refuse_cluster(arguments: argparse.Namespace, cluster: ClusterSize) -> None:
    """What SageMaker, its toolkit or this system does not start."""
    if cluster.distribution == "none" and cluster.processes > 1:
        raise UserError(
            f"--processes {cluster.processes}: without a launcher SageMaker starts one process "
            "per host",
            "use --processes 1",
        )
    if sys.platform == "win32":
        raise UserError("SageMaker's toolkit does not run on Windows", "use WSL")
    by_mpirun = cluster.distribution in mpirun.LAUNCHED
    several = cluster.hosts > 1 or by_mpirun or arguments.stop_host is not None
    if sys.platform != "linux" and several:
        raise UserError(
            "this system has one loopback address and no /proc",
            "use Linux, or --hosts 1 with torch_distributed",
        )


def refuse_variables(names: Sequence[str], shell: Mapping[str, str]) -> None:
    for name in names:
        if name not in shell:
            problem = f"--inherit {name}: this shell has no such variable"
            raise UserError(problem, "export it first")


def refuse_outputs(arguments: argparse.Namespace) -> None:
    """Before the hosts start, and not when they have ended."""
    taken = {"json": arguments.json and arguments.json.is_dir()}
    taken["keep"] = arguments.keep and arguments.keep.exists()
    for name, path in (("json", arguments.json), ("keep", arguments.keep)):
        if path and (taken[name] or not is_writable(path)):
            raise UserError(f"--{name} {path} exists or cannot be written", "name another place")


def is_writable(path: Path) -> bool:
    """Whether the file can be created; root may write everywhere, and yet not to /proc."""
    is_new = not os.path.lexists(path)
    try:
        with path.open("a"):
            pass
    except OSError:
        return False
    if is_new:
        path.unlink()
    return True


def refuse_hyperparameters(job: Job, project: Project) -> None:
    """What train.py would refuse is refused now, and not once every host has started."""
    for finding in judged_options(job, project):
        raise UserError(f"{finding.key}: {finding.problem}", finding.cure)
