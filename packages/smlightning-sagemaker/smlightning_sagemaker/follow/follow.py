"""Follow a job that was sent: print its status, log and metrics, and how it ended."""

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smlightning import terminal as terminals
from smlightning.errors import UserError
from smlightning.reports import curves
from smlightning_sagemaker.follow import job_log
from smlightning_sagemaker.follow.job_log import Line
from smlightning_sagemaker.job import aws

ENDED = ("Completed", "Failed", "Stopped")
POLL_S = 5.0  # between two looks; AWS throttles more
RETRIES = 60  # some ten minutes without a network
KEEP_ALIVE = "KeepAlivePeriodInSeconds"  # of ResourceConfig
PROGRESS_S = 60.0  # between two lines of progress where there is no live line: notebooks and files

STOPPED_BY = {
    "MaxRuntimeExceeded": "max_run_s was over",
    "MaxWaitTimeExceeded": "no spot capacity in max_wait_s",
}


@dataclass
class Outcome:
    """The state of a job.

    Attributes:
        rows: the metrics that the log holds, as `curves.write_curves` takes them.
        latest: each metric's last value.
    """

    name: str
    metrics: tuple[str, ...] = ()  # names, as METRICS of src/options.py lists them
    job: dict[str, Any] = field(default_factory=dict)  # DescribeTrainingJob's answer
    lines: list[Line] = field(default_factory=list, init=False)
    rows: list[dict[str, float]] = field(default_factory=list, init=False)
    latest: dict[str, float] = field(default_factory=dict, init=False)

    def add(self, lines: list[Line]) -> None:
        """Take lines of the log that came since; each is searched once."""
        self.lines += lines
        for line in lines:
            if row := job_log.metrics(line, self.metrics):
                self.rows.append(row)
                self.latest |= row

    @property
    def status(self) -> str:
        return str(self.job.get("TrainingJobStatus", ""))

    def curves(self, folder: Path) -> Path:
        """Draw the metrics over the steps into the folder; the picture's path.

        Raises:
            UserError: the log holds no metrics yet.
        """
        rows = [row for row in self.rows if "step" in row]
        if not rows:
            raise UserError(
                f"no metrics of {self.name} have been read, so there is nothing to draw",
                "run the cell that follows the job first",
            )
        curves.write_curves(rows, folder)
        return folder / "curves.png"


def follow(
    name: str, region: str, metrics: tuple[str, ...] = (), *, console: Any = None
) -> Outcome:
    """Print status changes, log lines and progress until the job has ended, and how it ended.

    A lost network, throttling and AWS's own failures are waited out for some minutes. The status
    is followed without the log where that cannot be read, and the reason is printed. Ctrl-C ends
    the following, not the job.

    Args:
        name: of the training job.
        region: where it runs.
        metrics: names of those that its log holds, as METRICS of src/options.py lists them.
        console: of rich; by default standard output.
    """
    outcome = Outcome(name, metrics)
    follower = Follower(outcome, region, console or terminal())
    try:
        with follower.console.status(name) as status:
            while not follower.ended:
                follower.look()
                status.update(follower.console.render_str(progress(outcome)))
                follower.print_progress()
    except BaseException:  # Ctrl-C, or credentials that expired meanwhile
        if outcome.job and outcome.status not in ENDED:
            print_way_back(outcome.name, region, follower.console)
        raise
    report_ending(outcome, region, follower.console)
    if outcome.status == "Failed":
        # Read again: what was followed has earlier attempts, too, and lines in order of arrival.
        log = job_log.Log(name, aws.client("logs", region), last_attempt=True)
        lines = log.new_lines()
        report_first_failure(outcome.lines if log.problem else lines, follower.console)
    return outcome


class Follower:
    """The state between two looks at a job."""

    def __init__(self, outcome: Outcome, region: str, console: Any) -> None:
        self.outcome = outcome
        self.console = console
        self.ended = False
        self._sagemaker = aws.client("sagemaker", region, retries=RETRIES)
        self._log = job_log.Log(outcome.name, aws.client("logs", region))
        self._printed: set[str] = set()  # sentences that are printed once
        self._transitions = 0  # status changes that were printed
        self._reported = time.monotonic()

    def look(self) -> None:
        """Read the status and then the log, and print the news; wait before a further look."""
        had_ended = self.outcome.status in ENDED
        if self.outcome.job:
            time.sleep(POLL_S)
        self.outcome.job = describe(self.outcome.name, self._sagemaker)
        self._print_transitions()
        self._read_log()
        if had_ended and not self.outcome.lines and not self._log.problem:
            self.console.print(no_log(self.outcome.name))
        self.ended = had_ended  # one look more: the log comes later than the status

    def _read_log(self) -> None:
        """Print new lines, or why they cannot be read."""
        self._print_lines(self._log.new_lines())
        problem, has_ended = self._log.problem, self.outcome.status in ENDED
        # A log group comes with the first job's log.
        if problem and (has_ended or not aws.missing(problem)):
            self._print_once(f"{aws.explain(problem)}; the status is followed meanwhile")

    def _print_once(self, sentence: str) -> None:
        if sentence not in self._printed:
            self.console.print(sentence)
        self._printed.add(sentence)

    def _print_transitions(self) -> None:
        job = self.outcome.job
        transitions = job.get("SecondaryStatusTransitions", [])
        for step in transitions[self._transitions :]:
            after = clock((step["StartTime"] - job["CreationTime"]).total_seconds())
            message = step.get("StatusMessage", "")
            self.console.print(f"{after} {step['Status']} {message}", style="bold")
        self._transitions = max(self._transitions, len(transitions))

    def _print_lines(self, lines: list[Line]) -> None:
        several = self.outcome.job.get("ResourceConfig", {}).get("InstanceCount") != 1
        for line in lines:
            self.console.print(f"{line.host} {line.text}" if several else line.text)
        self.outcome.add(lines)

    def print_progress(self) -> None:
        """A line each minute where the console has no live line."""
        if not self.console.is_terminal and time.monotonic() - self._reported > PROGRESS_S:
            self.console.print(progress(self.outcome))
            self._reported = time.monotonic()


def print_way_back(name: str, region: str, console: Any) -> None:
    """Print how to follow, stop and find a job that is still running."""
    console.print(
        "\nThe job still runs and is billed. "
        f"To follow it again: smlightning follow {name} --region {region}"
    )
    console.print(f"To stop it: smlightning stop {name} --region {region}")
    console.print(f"In the console: {url(region)}/{name}")


def why(name: str, region: str) -> None:
    """Print how a job ended, and the last lines of a failed one's rank that failed first.

    AWS's reason is part of the status, so it is printed even if the log cannot be read.
    """
    console = terminal()
    outcome = Outcome(name)
    outcome.job = describe(name, aws.client("sagemaker", region))
    report_ending(outcome, region, console)
    if outcome.status == "Completed":
        return
    log = job_log.Log(name, aws.client("logs", region), last_attempt=True)
    outcome.add(log.new_lines())
    if log.problem:
        console.print(f"The log was not read to its end: {aws.explain(log.problem)}")
    elif not outcome.lines:
        console.print(no_log(name))
    if outcome.status == "Failed":
        report_first_failure(outcome.lines, console)


def no_log(name: str) -> str:
    """The message for a job without a log."""
    return (
        f"CloudWatch Logs holds no line of {name}: it wrote none, its log was deleted, or the "
        "log's retention is over"
    )


def terminal() -> Any:
    """A rich console that prints plain lines, also in notebooks and files."""
    # A notebook's output claims to be a terminal.
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    live = None if stream is sys.__stdout__ else False
    return terminals.console(
        highlight=False, markup=False, soft_wrap=True, force_terminal=live, force_jupyter=False
    )


def describe(name: str, client: Any) -> dict[str, Any]:
    """DescribeTrainingJob's answer.

    Raises:
        UserError: the client's region has no such job.
    """
    from botocore.exceptions import ClientError

    try:
        return dict(client.describe_training_job(TrainingJobName=name))
    except ClientError as failure:
        if not re.search("not f(i|ou)nd|does not exist", str(failure)):
            raise
        region = client.meta.region_name
        raise UserError(
            f'no training job "{name}" in {region}',
            f"use a job of {url(region)}, or pass another --region",
        ) from failure


def progress(outcome: Outcome) -> str:
    """One line: status, elapsed time, epochs, and each metric's last value."""
    job = outcome.job
    latest = dict(outcome.latest)
    elapsed = time.time() - job["CreationTime"].timestamp()
    parts = [job.get("SecondaryStatus", ""), clock(elapsed)]
    if "epoch" in latest:
        epochs = job.get("HyperParameters", {}).get("epochs", "?")
        parts.append(f"epoch {latest.pop('epoch'):g} of {epochs}")
    parts += [f"{name} {value:.4g}" for name, value in latest.items()]
    return " · ".join(parts)


def report_ending(outcome: Outcome, region: str, console: Any) -> None:
    """Print how the job ended, what is billed, and what to do next."""
    name, job = outcome.name, outcome.job
    if outcome.status == "Failed":
        reason = job.get("FailureReason", "AWS gives no reason")
        console.print(f"{name} failed: {reason}", style="bold red")
        if hint := aws.hint_of(reason):
            console.print(f"{hint[0].upper()}{hint[1:]}.")
    elif outcome.status == "Stopped":
        cause = STOPPED_BY.get(job.get("SecondaryStatus", "")) or last_message(job)
        checkpoints = job.get("CheckpointConfig", {}).get("S3Uri")
        resume = "It kept no checkpoints."
        if checkpoints:
            resume = f'To resume from its checkpoints: checkpoint_s3 = "{checkpoints}"'
        console.print(f"{name} was stopped: {cause}. {resume}", style="bold yellow")
    elif outcome.status == "Completed":
        fetch = f"smlightning fetch {name}"
        console.print(f"{name} completed. To fetch its model: {fetch}", style="bold green")
    else:
        console.print(f"{name} has not ended: {progress(outcome)}", style="bold")
    report_bill(outcome, region, console)


def last_message(job: dict[str, Any]) -> str:
    """AWS's last message about a job's status: the only reason of a job that waited too long."""
    messages = [step.get("StatusMessage") for step in job.get("SecondaryStatusTransitions", [])]
    return next(filter(None, reversed(messages)), "AWS gives no reason").rstrip(".")


def report_first_failure(lines: list[Line], console: Any) -> None:
    """Print the last lines of the rank of a failed job that failed first."""
    who, texts = job_log.first_failure(lines)
    if texts:
        console.print(f"The last lines of {who}, which failed first:", style="bold")
        for text in texts:
            console.print(f"  {text}")


def report_bill(outcome: Outcome, region: str, console: Any) -> None:
    """Print how long the job trained, and the billed time of job and warm pool."""
    job = outcome.job
    trained = job.get("TrainingTimeInSeconds")
    billed = job.get("BillableTimeInSeconds")
    if trained and billed is not None:
        saved = ""
        if job.get("EnableManagedSpotTraining") and billed < trained:
            saved = f"; spot saved {1 - billed / trained:.0%}"
        console.print(
            f"It trained {clock(trained)} and is billed {clock(billed)} on each instance{saved}."
        )
    if pool := warm_pool(job, outcome.name, region):
        console.print(pool)


def warm_pool(job: dict[str, Any], name: str, region: str) -> str:
    """A sentence about instances that wait, billed, for another job; empty without them.

    A pool stays after a stop and after a failure of the algorithm, too
    (https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html).
    """
    status = job.get("WarmPoolStatus", {}).get("Status")
    kept_s = job.get("ResourceConfig", {}).get(KEEP_ALIVE)
    if not kept_s or status not in ("Available", "InUse"):
        return ""
    return (
        f"Its warm pool is billed for up to {clock(kept_s)} after the job's end. "
        f"To end it: smlightning stop {name} --region {region}"
    )


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def url(region: str) -> str:
    """The address of the training jobs in the AWS console."""
    return f"{aws.console(region)}#/jobs"
