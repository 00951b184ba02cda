"""The plan of a rehearsal: made from the command line and job.toml, contradictions rejected."""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smlightning.cluster.location import DEFAULT_PORT, SMDDP_INSTANCES, runs_smddp
from smlightning.errors import UserError
from smlightning.options import encode, parse_command_line
from smlightning_sagemaker.findings import hint_for_unknown_name
from smlightning_sagemaker.job import images, instances, launchers, request
from smlightning_sagemaker.job import job as jobs
from smlightning_sagemaker.job.images import Profile
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project
from smlightning_sagemaker.rehearsal import mpirun
from smlightning_sagemaker.rehearsal.hidden import hidden

FAIL_RANK = "fail-rank"  # the rank raises an error
KILL_RANK = "kill-rank"  # the rank gets SIGKILL
STOP_HOST = "stop-host"  # the host's entry point gets SIGTERM, as SageMaker sends it
LOSE_HOST = "lose-host"  # every process of the host gets SIGKILL
FAULTS = (FAIL_RANK, KILL_RANK, STOP_HOST, LOSE_HOST)

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]+")
BATCHES = 20  # enough for every check, and for the faults, which come in step 2
# Seconds of training: an interruption after step 2 has to come before the end.
INTERRUPTED_BATCHES = 200
LENGTHS = {"epochs", "max_epochs", "max_steps"}  # hyperparameters that say how long training takes
CHECKPOINT_STEPS = 5  # without a checkpoint a lost host leaves nothing to resume from
MOST = 64  # hosts, and processes per host
DAY = 86400  # seconds
VALUES = "write --name value: SageMaker passes each option as a name and a value, no flags"
# Variables that would reach out of this machine: an MLflow server, CodeArtifact.
REMOTE_VARIABLES = ("MLFLOW_", "CA_REPOSITORY_ARN")


@dataclass(frozen=True)
class Fault:
    """A fault in the middle of training, and its place."""

    kind: str  # one of FAULTS
    target: int  # a rank; for stop-host and lose-host the host's index, from 0

    @property
    def interrupts(self) -> bool:
        """Whether the job starts again afterwards, as after a spot interruption."""
        return self.kind in (STOP_HOST, LOSE_HOST)


@dataclass(frozen=True)
class Plan:
    """One request, played on a number of hosts and processes."""

    hosts: int
    processes: int  # per host, as many as it would have GPUs
    distribution: str  # how SageMaker starts the script; never "auto"
    source: Path  # the folder with train.py
    request: Mapping[str, Any]  # CreateTrainingJob's
    channels: Mapping[str, Path] = field(default_factory=dict)  # folders of this machine
    inherit: Sequence[str] = ()  # variables of this shell that the hosts get too
    secrets: Sequence[str] = ()  # variables of this shell that stand for the job's secrets
    image: Profile | None = None  # versions in the job's image, if known
    hidden_modules: Sequence[str] = ()  # of this environment, which the hosts lack
    hidden_packages: Sequence[str] = ()
    notes: Sequence[str] = ()  # printed before training
    fault: Fault | None = None
    batches: int = 0  # limit for one epoch, validation and test; 0: train.py decides
    timeout: float = 1800.0  # seconds
    grace: float = 60.0  # seconds that the other hosts have to end after one has failed
    port: int = DEFAULT_PORT  # MASTER_PORT
    real_mpirun: bool = False  # whether mpirun itself starts the ranks

    @property
    def world_size(self) -> int:
        return self.hosts * self.processes

    @property
    def instance_type(self) -> str:
        """The type of all hosts."""
        return str(self.request["ResourceConfig"]["InstanceType"])

    @property
    def region(self) -> str:
        return str(json.loads(self.request["HyperParameters"]["sagemaker_region"]))

    @property
    def entrypoint(self) -> list[str]:
        """The request's entry point; empty: the image's."""
        return list(self.request["AlgorithmSpecification"].get("ContainerEntrypoint") or [])


@dataclass(frozen=True)
class ClusterSize:
    """The size of the simulated cluster."""

    hosts: int
    processes: int  # per host
    distribution: str


def make_plan(arguments: argparse.Namespace, project: Project) -> Plan:
    """The plan of a rehearsal.

    Raises:
        UserError: the arguments contradict each other, job.toml or this machine.
    """
    source = arguments.source_dir or project.src
    of_project = source.resolve() == project.src.resolve()
    job = jobs.load(arguments.job or project.job_file, project)
    cluster = cluster_size(arguments, job)
    fault = chosen_fault(arguments)
    check_source(source)
    check_numbers(arguments, cluster, fault)
    check_cluster(arguments, cluster)
    check_files(arguments)
    folders = channel_folders(arguments.channel, job if of_project else None)
    if of_project:
        check_channels(job, folders)
    given = hyperparameters(arguments.hyperparameters)
    secrets = job.secrets
    inherited = {name: text for name, text in secrets.items() if name in arguments.inherit}
    if not of_project:
        job = job.replace(channels={n: each for n, each in job.channels.items() if n in folders})
    job, notes = rehearsed_job(job, cluster, fault, given, of_project)
    job = job.replace(secrets=inherited)
    missing = [name for name in secrets if name not in inherited]
    if missing:
        options = " ".join(f"--inherit {name}" for name in missing)
        notes.append(f"the hosts lack secrets: export {', '.join(missing)}, and add {options}")
    if of_project:
        words = [f"--{name}={encode(value)}" for name, value in job.hyperparameters.items()]
        parse_command_line(project.options().cls, words)  # before the hosts start
    body = request.dry_run(job, project)
    if not of_project:  # a script that does not decode: the toolkit does with them what it does
        plain = {name: json.dumps(value) for name, value in job.hyperparameters.items()}
        body["HyperParameters"].update(plain)
    modules, packages, note = hidden(job, source)
    notes.insert(0, note)
    return Plan(
        hosts=cluster.hosts,
        processes=cluster.processes,
        distribution=cluster.distribution,
        source=source,
        request=body,
        channels=folders,
        inherit=[name for name in arguments.inherit if name not in secrets],
        secrets=list(inherited),
        image=images.profile(job),
        hidden_modules=modules,
        hidden_packages=packages,
        notes=notes,
        fault=fault,
        batches=batches(arguments.batches, fault, given),
        timeout=arguments.timeout,
    )


def cluster_size(arguments: argparse.Namespace, job: Job) -> ClusterSize:
    """The command line's size, else job.toml's, with at most two of a host's GPUs."""
    distribution = arguments.distribution
    if distribution in (None, "auto"):
        distribution = launchers.launcher(job)
    hosts = job.instance_count if arguments.hosts is None else arguments.hosts
    processes = arguments.processes
    if processes is None:
        gpus = instances.gpus(job.instance_type)
        processes = 1 if distribution == "none" or gpus in (0, 1) else 2
    return ClusterSize(hosts, processes, distribution)


def chosen_fault(arguments: argparse.Namespace) -> Fault | None:
    """The fault of the command line, which counts hosts from 1 and ranks from 0."""
    for kind in FAULTS:
        number = getattr(arguments, kind.replace("-", "_"))
        if number is not None:
            return Fault(kind, number - 1 if kind in (STOP_HOST, LOSE_HOST) else number)
    return None


def batches(wanted: int | None, fault: Fault | None, given: Mapping[str, Any]) -> int:
    """The limit of batches; 0 for none, if the options say how long training takes."""
    if wanted is not None:
        return wanted
    if LENGTHS & {name.rpartition(".")[2] for name in given}:  # trainer.max_epochs, too
        return 0
    return INTERRUPTED_BATCHES if fault and fault.interrupts else BATCHES


def rehearsed_job(
    job: Job, cluster: ClusterSize, fault: Fault | None, given: Mapping[str, Any], of_project: bool
) -> tuple[Job, list[str]]:
    """The job for the rehearsal, and notes on how it differs from the job of job.toml."""
    notes = []
    values = {**job.hyperparameters, **given}
    if not of_project:
        values = dict(given)  # job.toml's are for the project's own train.py
    elif fault and fault.kind == LOSE_HOST:
        values = {**job.hyperparameters, "checkpoint_steps": CHECKPOINT_STEPS, **given}
    if fault and fault.kind == STOP_HOST and not job.forward_stop:
        notes.append(
            "forward_stop is false in job.toml: on SageMaker, SIGTERM does not reach training; "
            "--lose-host rehearses that"
        )
        job = job.replace(forward_stop=True)
    kind = job.instance_type
    if cluster.distribution == "smddp" != job.distribution and not runs_smddp(kind):
        kind = SMDDP_INSTANCES[0]
        notes.append(f"SMDDP does not run on {job.instance_type}: the rehearsal uses {kind}")
    notes += [f"{name} of [request] is not rehearsed: {kind} is" for name in job.other_hosts]
    environment = {
        name: value
        for name, value in job.environment.items()
        if not name.startswith(REMOTE_VARIABLES)
    }
    config = job.request.get("ResourceConfig", {})
    kept = {name: value for name, value in config.items() if name not in job.other_hosts}
    changed = job.replace(
        instance_type=kind,
        instance_count=cluster.hosts,
        request={**job.request, "ResourceConfig": kept},
        distribution=cluster.distribution,
        hyperparameters=values,
        environment=environment,
    )
    return changed, notes


def hyperparameters(words: Sequence[str]) -> dict[str, Any]:
    """``--epochs 1 --lr=1e-3`` as values.

    Raises:
        UserError: a word is not an option, or an option has no value.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        option, equals, text = rest.pop(0).partition("=")
        if not option.startswith("--") or not (equals or rest):
            raise UserError(f"{option!r} after -- is no option with a value", VALUES)
        if not equals:
            text = rest.pop(0)
        values[option.removeprefix("--")] = hyperparameter(text)
    return values


def hyperparameter(text: str) -> str | int | float | bool:
    """The value of a word: a number, a boolean, or a text, which arrives as it was written.

    An existing path becomes absolute, since hosts start in folders of their own. A list stays
    text, as in job.toml: train.py reads it.
    """
    if "/" in text and os.path.exists(text):  # noqa: PTH110  Path.exists raises for a long text
        return str(Path(text).resolve())
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, bool) or (isinstance(value, int | float) and str(value) == text):
            return value
    return text


def channel_folders(words: Sequence[str], job: Job | None) -> dict[str, Path]:
    """``NAME=DIR`` of each ``--channel``, checked.

    Args:
        job: if it has channels, only these can have a folder. None: a script without a job.
    """
    folders = {}
    for word in words:
        name, _, folder = word.partition("=")
        if not (CHANNEL_NAME.fullmatch(name) and folder and Path(folder).is_dir()):
            raise UserError(f"--channel {name}={folder}: no such folder", "write NAME=DIR")
        if job and job.channels and name not in job.channels:
            problem = f"--channel {name} is not among [channels] of job.toml"
            raise UserError(problem, hint_for_unknown_name(name, job.channels))
        folders[name] = Path(folder)
    return folders


def check_source(source: Path) -> None:
    """Raise UserError if the toolkit could not start this folder's train.py here."""
    if not (source / "train.py").is_file():
        raise UserError(f"--source-dir {source} has no train.py", "give your script's folder")
    if (source / "setup.py").exists():
        raise UserError(
            f"--source-dir {source} has a setup.py, which SageMaker's toolkit would install into "
            "this environment",
            "rehearse a copy without it",
        )


def check_channels(job: Job, folders: Mapping[str, Path]) -> None:
    """Raise UserError for a channel of the job without a folder here."""
    for name in job.channels:
        if name not in folders:
            raise UserError(
                f"channel {name} has no data here: a rehearsal reads nothing from S3",
                f"copy some of its files into a folder, and add --channel {name}=DIR",
            )


def check_numbers(arguments: argparse.Namespace, cluster: ClusterSize, fault: Fault | None) -> None:
    """Raise UserError for a number out of range."""
    ranges = [
        ("hosts", cluster.hosts, 1, MOST),
        ("processes", cluster.processes, 1, MOST),
        ("timeout", arguments.timeout, 1, DAY),
        ("batches", arguments.batches or 0, 0, 10**9),
    ]
    if fault and fault.interrupts:
        ranges.append((fault.kind, fault.target + 1, 1, cluster.hosts))
    elif fault:
        ranges.append((fault.kind, fault.target, 0, cluster.hosts * cluster.processes - 1))
    for option, value, first, last in ranges:
        if not first <= value <= last:  # also NaN
            raise UserError(f"--{option} {value} is out of range", f"give {first} to {last}")


def check_cluster(arguments: argparse.Namespace, cluster: ClusterSize) -> None:
    """Raise UserError for a cluster that SageMaker or this system does not start."""
    if cluster.distribution == "none" and cluster.processes > 1:
        raise UserError(
            f"--processes {cluster.processes}: without a launcher, SageMaker starts one process "
            "per host",
            "use --processes 1",
        )
    if sys.platform == "win32":
        raise UserError("SageMaker's toolkit does not run on Windows", "use WSL")
    by_mpirun = cluster.distribution in mpirun.LAUNCHED
    needs_linux = cluster.hosts > 1 or by_mpirun or arguments.stop_host is not None
    if sys.platform != "linux" and needs_linux:
        raise UserError(
            "several hosts, mpirun and --stop-host are simulated on Linux only",
            "use Linux, or --hosts 1 with torch_distributed",
        )


def check_files(arguments: argparse.Namespace) -> None:
    """Raise UserError for missing variables and unusable output paths before the hosts start."""
    for name in arguments.inherit:
        if name not in os.environ:
            problem = f"--inherit {name}: this shell has no such variable"
            raise UserError(problem, "export it first")
    report, kept = arguments.json, arguments.keep
    if report and (report.is_dir() or not report.parent.is_dir()):
        raise UserError(f"--json {report} cannot be written", "give a file in an existing folder")
    if kept and (kept.exists() or not kept.parent.is_dir()):
        raise UserError(f"--keep {kept} exists or has no parent folder", "give a new folder")
