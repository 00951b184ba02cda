"""A job that was sent: its status, log and metrics as they come, how it ended, and why."""

import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from launch import ROOT, aws
from options import METRICS
from runtime import report
from runtime.report import UserError

LOG_GROUP = "/aws/sagemaker/TrainingJobs"  # its streams: <job>/algo-<n>-<timestamp>, one for each host
ENDED = ("Completed", "Failed", "Stopped")
POLL_S = 5.0  # between two looks; AWS throttles more
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
        """Path of a picture of the metrics over the steps; raises UserError if the log tells none yet."""
        rows = [row for row in self.rows if "step" in row]
        if not rows:
            raise UserError(f"{self.name} has logged no metrics that could be drawn; follow it first")
        folder = ROOT / "outputs" / self.name
        report.write_curves(rows, folder)
        return str(folder / "curves.png")


def follow(name: str, region: str, *, console: Any = None) -> Outcome:
    """Print status changes, log lines and progress until the job has ended, and say how it ended.

    No network, throttling and AWS's own failures are waited out; without permission to read logs, the status alone is
    followed. Ctrl-C ends the following, not the job.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    console = console or terminal()
    client, logs, tokens = aws.client("sagemaker", region), aws.client("logs", region), dict[str, str]()
    outcome, shown, failures, reported, wait, ended = Outcome(name), 0, 0, time.monotonic(), 0.0, False
    try:
        with console.status(name) as status:
            while not ended:
                if wait:
                    time.sleep(wait)
                wait = min(POLL_S * 2 ** min(failures, 6), 60.0)
                try:
                    job = describe(name, client)
                    lines = new_lines(name, logs, tokens) if logs else []
                except (BotoCoreError, ClientError) as problem:
                    if logs and aws.denied(problem) and "Log" in getattr(problem, "operation_name", ""):
                        console.print(f"{aws.explain(problem)}; following the status alone")
                        logs = None
                    elif aws.transient(problem):
                        if not failures:
                            console.print(f"{aws.explain(problem)}; asking again until there is an answer")
                        failures += 1
                    else:
                        raise
                    continue
                ended = outcome.status in ENDED  # before this look: the log is later than the status
                failures, wait = 0, POLL_S
                outcome.job = job
                for step in job.get("SecondaryStatusTransitions", [])[shown:]:
                    after = clock((step["StartTime"] - job["CreationTime"]).total_seconds())
                    console.print(f"{after} {step['Status']} {step.get('StatusMessage', '')}", style="bold")
                    shown += 1
                several = job["ResourceConfig"].get("InstanceCount", 2) > 1
                for line in lines:
                    outcome.lines.append(line)
                    console.print(f"{line.host} {line.text}" if several else line.text)
                status.update(progress(outcome))
                if not console.is_terminal and time.monotonic() - reported > 60:  # no live line in notebooks and files
                    console.print(progress(outcome))
                    reported = time.monotonic()
    except BaseException:  # Ctrl-C, or credentials that expired meanwhile
        if outcome.job and outcome.status not in ENDED:
            console.print(f"\nThe job still runs and is billed. To follow it again: python -m launch attach {name}")
            console.print(f"To stop it: python -m launch stop {name}\nIn the console: {url(region)}/{name}")
        raise
    report_ending(outcome, console)
    return outcome


def why(name: str, region: str) -> None:
    """Print how a job ended, which rank failed first, and its last lines."""
    from botocore.exceptions import ClientError

    console = terminal()
    outcome = Outcome(name, describe(name, aws.client("sagemaker", region)))
    try:
        outcome.lines = new_lines(name, aws.client("logs", region), {})
    except ClientError as problem:
        if not aws.denied(problem):
            raise
        console.print(f"{aws.explain(problem)}; what follows is from the status alone")
    report_ending(outcome, console)


def terminal() -> Any:
    """A console that prints plain lines, in notebooks and files too."""
    from rich.console import Console

    live = None if sys.stdout is sys.__stdout__ else False  # a notebook's output claims to be a terminal
    return Console(highlight=False, markup=False, soft_wrap=True, force_terminal=live, force_jupyter=False)


def describe(name: str, client: Any) -> dict[str, Any]:
    """DescribeTrainingJob's answer; raises UserError if the region has no such job."""
    if answer := aws.call(client, "Describe", "TrainingJob", name):
        return answer
    region = client.meta.region_name
    raise UserError(f'no training job "{name}" in {region}; all there are: {url(region)}')


def new_lines(name: str, logs: Any, tokens: dict[str, str]) -> list[Line]:
    """Lines of all hosts that came since `tokens`, in order of time; `tokens` moves on when all were read."""
    found, read = list[Line](), dict(tokens)
    try:
        listing = logs.get_paginator("describe_log_streams")
        pages = listing.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/")
        streams = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
    except logs.exceptions.ResourceNotFoundException:
        return []  # no job of this account has logged yet
    for stream in streams:
        host = "-".join(stream.rpartition("/")[2].split("-")[:2])
        while True:
            since = {"nextToken": read[stream]} if stream in read else {}
            page = logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **since)
            found += [Line(event["timestamp"], host, event["message"].rstrip()) for event in page["events"]]
            if read.get(stream) == page["nextForwardToken"]:
                break  # the end: the token that was sent comes back; a page may be empty before it
            read[stream] = page["nextForwardToken"]
    tokens.update(read)
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


def report_ending(outcome: Outcome, console: Any) -> None:
    """Print how the job ended, what is billed, and what to do next."""
    name, job = outcome.name, outcome.job
    if outcome.status == "Failed":
        console.print(f"{name} failed: {job.get('FailureReason', 'AWS gives no reason')}", style="bold red")
        who, lines = last_words(outcome.lines)
        if lines:
            console.print(f"The last lines of {who}, which failed first:", style="bold")
            for text in lines:
                console.print(f"  {text}")
    elif outcome.status == "Stopped":
        causes = {"MaxRuntimeExceeded": "max_run_s was over", "MaxWaitTimeExceeded": "no spot capacity in max_wait_s"}
        cause = causes.get(job.get("SecondaryStatus", ""), "someone asked for it")
        kept = job.get("CheckpointConfig", {}).get("S3Uri")
        later = f' To resume from its checkpoints: checkpoint_s3 = "{kept}"' if kept else " It kept no checkpoints."
        console.print(f"{name} was stopped: {cause}.{later}", style="bold yellow")
    elif outcome.status == "Completed":
        console.print(f"{name} completed. To fetch its model: python -m launch fetch {name}", style="bold green")
    else:
        console.print(f"{name} has not ended: {progress(outcome)}", style="bold")
    trained, billed = job.get("TrainingTimeInSeconds"), job.get("BillableTimeInSeconds")
    if trained and billed is not None:
        saved = f"; spot saved {1 - billed / trained:.0%}" if job.get("EnableManagedSpotTraining") else ""
        hosts = job["ResourceConfig"].get("InstanceCount", "all its")
        instances = f"{hosts} instance{'s' * (hosts != 1)}"
        console.print(f"It trained {clock(trained)} and is billed {clock(billed)} on {instances}{saved}.")


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


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def url(region: str) -> str:
    """Where the AWS console shows training jobs."""
    return f"https://{region}.console.aws.amazon.com/sagemaker/home?region={region}#/jobs"
