"""A job that has been sent: status, log and metrics as they come, how it ended, and its model brought home."""

import re
import shutil
import sys
import tarfile
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from launch import ROOT
from options import METRICS
from runtime import report
from runtime.report import UserError

LOG_GROUP = "/aws/sagemaker/TrainingJobs"  # its streams: <job>/algo-<n>-<timestamp>, one for each host
ENDED = ("Completed", "Failed", "Stopped")
# What a rank says of itself: torch before tracebacks, [rank3]:, mpirun before every line, [1,mpirank:3,algo-1]<stdout>:
RANK = re.compile(r"^\[rank(\d+)\]: ?|^\[\d+,(?:mpirank:)?(\d+)[^\]]*\]<std(?:out|err)>:\s?")
ROOT_CAUSE = re.compile(r"Root Cause.*?\brank\s*:\s*(\d+)", re.S)  # torchrun's last table
FAILURE = re.compile(r"Traceback \(most recent call last\)|^(\w+\.)*\w*Error\b|^error: ")


@dataclass(frozen=True)
class Line:
    """A line of a job's log."""

    at: int  # milliseconds
    host: str  # algo-1
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that says so of itself."""
        found = RANK.match(self.text)
        return int(found[1] or found[2]) if found else None

    @cached_property
    def metrics(self) -> dict[str, float]:
        """step, epoch and any of `options.METRICS`; empty if it has none of these."""
        text, values = RANK.sub("", self.text), dict[str, float]()
        for name in ("step", "epoch", *METRICS):
            if found := re.search(report.metric_regex(name), text):
                with suppress(ValueError):  # "epoch 3..." is no number
                    values[name] = float(found[1])
        return values if values.keys() & set(METRICS) else {}


@dataclass
class Outcome:
    """How far a job has come."""

    name: str
    job: dict[str, Any] = field(default_factory=dict)  # DescribeTrainingJob's answer
    lines: list[Line] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.job.get("TrainingJobStatus", ""))

    @property
    def rows(self) -> list[dict[str, float]]:
        """The metrics that the log holds, as `report.write_curves` takes them."""
        return [row for line in self.lines if (row := line.metrics)]

    def curves(self) -> str:
        """Path of a picture of the metrics over the steps, as far as the log tells them.

        Raises:
            UserError: it tells none yet.
        """
        rows = [row for row in self.rows if "step" in row]
        if not rows:
            raise UserError(f"{self.name} has logged no metrics that could be drawn; follow it first")
        folder = ROOT / "outputs" / self.name
        report.write_curves(rows, folder)
        return str(folder / "curves.png")


def follow(name: str, region: str, *, poll_s: float = 5.0, console: Any = None) -> Outcome:
    """Print status changes, log lines and progress until the job has ended, and say how it did.

    Ctrl-C ends the following, not the job.

    Args:
        name: of the training job.
        region: where it runs.
        poll_s: seconds between two looks; AWS throttles more.
    """
    from rich.console import Console

    live = None if sys.stdout is sys.__stdout__ else False  # a notebook's output claims to be a terminal
    console = console or Console(
        highlight=False, markup=False, soft_wrap=True, force_terminal=live, force_jupyter=False
    )
    outcome, shown, tokens, told, ended = Outcome(name), 0, dict[str, str](), time.monotonic(), False
    try:
        with console.status(name) as status:
            client, logs = connect("sagemaker", region), connect("logs", region)
            while not ended:
                if outcome.job:
                    time.sleep(poll_s)
                ended = outcome.status in ENDED  # and once more, since the log comes later than the status
                outcome.job = job = describe(name, client)
                for step in job.get("SecondaryStatusTransitions", [])[shown:]:
                    after = clock((step["StartTime"] - job["CreationTime"]).total_seconds())
                    console.print(f"{after} {step['Status']} {step.get('StatusMessage', '')}", style="bold")
                    shown += 1
                several = job["ResourceConfig"].get("InstanceCount", 2) > 1
                for line in new_lines(name, logs, tokens):
                    outcome.lines.append(line)
                    console.print(f"{line.host} {line.text}" if several else line.text)
                status.update(progress(outcome))
                if not console.is_terminal and time.monotonic() - told > 60:  # no live line in notebooks and files
                    console.print(progress(outcome))
                    told = time.monotonic()
    except BaseException:  # Ctrl-C, credentials that expired meanwhile, no network
        if outcome.job and outcome.status not in ENDED:
            console.print(f"\nThe job goes on, and is billed. Watch it again: python -m launch attach {name}")
            console.print(f"Stop it: python -m launch stop {name}\nIn the console: {url(region)}/{name}")
        raise
    for style, text in ending(outcome):
        console.print(text, style=style)
    return outcome


def connect(service: str, region: str) -> Any:
    """A boto3 client."""
    import boto3

    return boto3.Session(region_name=region).client(service)


def describe(name: str, client: Any) -> dict[str, Any]:
    """DescribeTrainingJob.

    Raises:
        UserError: there is no such job in the region.
    """
    from botocore.exceptions import ClientError

    try:
        answer: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
        return answer
    except ClientError as error:
        if "not find" not in str(error) and "not found" not in str(error):
            raise
        region = client.meta.region_name
        raise UserError(f'no training job "{name}" in {region}; all there are: {url(region)}') from error


def new_lines(name: str, logs: Any, tokens: dict[str, str]) -> list[Line]:
    """Lines of all hosts that came since `tokens`, in order of time; `tokens` moves on."""
    found = []
    try:
        pages = logs.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/"
        )
        streams = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
    except logs.exceptions.ResourceNotFoundException:
        return []  # no job of this account has logged yet
    for stream in streams:
        host = "-".join(stream.rpartition("/")[2].split("-")[:2])
        while True:
            since = {"nextToken": tokens[stream]} if stream in tokens else {}
            page = logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **since)
            found += [Line(event["timestamp"], host, event["message"].rstrip()) for event in page["events"]]
            if tokens.get(stream) == page["nextForwardToken"]:
                break  # the end: the token that was sent comes back; a page may be empty before it
            tokens[stream] = page["nextForwardToken"]
    return sorted(found, key=lambda line: line.at)


def progress(outcome: Outcome) -> str:
    """One line: status, elapsed time, epochs, and each metric's last value."""
    job, latest = outcome.job, dict[str, float]()
    for row in outcome.rows:
        latest |= row
    parts = [job.get("SecondaryStatus", ""), clock(time.time() - job["CreationTime"].timestamp())]
    if "epoch" in latest:
        epochs = job.get("HyperParameters", {}).get("epochs", "?")
        parts.append(f"epoch {latest.pop('epoch'):g} of {epochs}")
    return " · ".join([*parts, *(f"{key} {value:.4g}" for key, value in latest.items())])


def ending(outcome: Outcome) -> list[tuple[str, str]]:
    """How the job ended, what is billed, and what to do next: (style, text)."""
    name, job, said = outcome.name, outcome.job, list[tuple[str, str]]()
    if outcome.status == "Failed":
        said.append(("bold red", f"{name} failed: {job.get('FailureReason', 'AWS gives no reason')}"))
        who, lines = last_words(outcome.lines)
        if lines:
            said += [("bold", f"The last lines of {who}, which failed first:"), *(("", f"  {text}") for text in lines)]
    elif outcome.status == "Stopped":
        why = {"MaxRuntimeExceeded": "max_run_s was over", "MaxWaitTimeExceeded": "no spot capacity came in max_wait_s"}
        told = why.get(job.get("SecondaryStatus", ""), "someone asked for it")
        kept = job.get("CheckpointConfig", {}).get("S3Uri")
        later = f' To go on from its checkpoints: checkpoint_s3 = "{kept}"' if kept else " It kept no checkpoints."
        said.append(("bold yellow", f"{name} was stopped: {told}.{later}"))
    else:
        said.append(("bold green", f"{name} completed. Bring its model home: python -m launch fetch {name}"))
    trained, billed = job.get("TrainingTimeInSeconds"), job.get("BillableTimeInSeconds")
    if trained and billed is not None:
        saved = f"; spot saved {1 - billed / trained:.0%}" if job.get("EnableManagedSpotTraining") else ""
        hosts = job["ResourceConfig"].get("InstanceCount", "all its")
        said.append(("", f"It trained {clock(trained)} and is billed {clock(billed)} on {hosts} instances{saved}."))
    return said


def last_words(lines: list[Line], count: int = 20) -> tuple[str, list[str]]:
    """Who failed first, and the last lines of that rank, else of that host.

    The other ranks fail a moment later because of it, so a log's last lines seldom say why. torchrun names the rank
    in its root cause; else it is the first to print a traceback or an error.
    """
    cause = ROOT_CAUSE.search("\n".join(RANK.sub("", line.text) for line in lines))
    failures = [line for line in lines if FAILURE.search(RANK.sub("", line.text))]
    named = [line for line in failures if cause and line.rank == int(cause[1])]
    first = next(iter(named or failures or lines[-1:]), None)
    if first is None:
        return "", []
    own = [line.text for line in lines if line.host == first.host and line.rank == first.rank]
    return first.host if first.rank is None else f"rank {first.rank} on {first.host}", own[-count:]


def stop(name: str, region: str) -> str:
    """Ask SageMaker to stop the job; what will happen, in words."""
    client = connect("sagemaker", region)
    status = describe(name, client)["TrainingJobStatus"]
    if status in ENDED:
        return f"{name} has ended already: {status}"
    client.stop_training_job(TrainingJobName=name)
    return f"{name} is stopping; SageMaker gives it 120 s, and keeps its model and checkpoints"


def fetch(name: str, region: str, target: Path | None = None) -> Path:
    """Bring the job's model to `models/<job>`, with its curves in `output/` where there are any; the folder.

    Raises:
        UserError: there is no model, or its archive holds what does not belong into it.
    """
    from botocore.exceptions import ClientError

    target = target or ROOT / "models" / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already; remove it, or name another folder with --to")
    s3, job = connect("s3", region), describe(name, connect("sagemaker", region))
    if job["TrainingJobStatus"] not in ENDED:
        raise UserError(f"{name} has no model yet, it is {job['TrainingJobStatus']}; python -m launch attach {name}")
    uri = job.get("ModelArtifacts", {}).get("S3ModelArtifacts", "")
    if not uri:
        raise UserError(f"{name} left no model; see its log: python -m launch attach {name}")
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        for archive, into in ((key, "model"), (key.replace("model.tar.gz", "output.tar.gz"), "model/output")):
            try:
                s3.download_file(bucket, archive, f"{folder}/archive")
                unpack(Path(folder, "archive"), Path(folder, into))
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("404", "NoSuchKey"):
                    raise
                if into == "model":
                    raise UserError(
                        f"{name} left no model at {uri}; see its log: python -m launch attach {name}"
                    ) from error
        Path(folder, "model").replace(target)
    return target


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar.gz of plain files and folders within `target`, and nothing else.

    Raises:
        UserError: it is damaged, or holds links, devices, or paths that lead out of the folder.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            odd = [
                m.name
                for m in members
                if not (m.isfile() or m.isdir()) or m.name.startswith("/") or ".." in m.name.split("/")
            ]
            if odd:
                raise UserError(f'the archive holds "{odd[0]}", no plain file within its folder; nothing was unpacked')
            if sum(m.size for m in members) > shutil.disk_usage(target).free:
                raise UserError(
                    f"the model is larger than what is free on the disk of {target}; free some, or use --to"
                )
            tar.extractall(target, members, filter="data")
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"the archive cannot be unpacked ({error}); fetch it again") from error


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def url(region: str) -> str:
    """Where the AWS console shows training jobs."""
    return f"https://{region}.console.aws.amazon.com/sagemaker/home?region={region}#/jobs"
