"""Following a job that was sent: its status, log and metrics as they come, and how it ended."""

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smlightning import terminal as terminals
from smlightning.errors import UserError
from smlightning.launch import aws, job_log, resources
from smlightning.launch.job_log import Line
from smlightning.reports import curves

ENDED = ("Completed", "Failed", "Stopped")
POLL_S = 5.0  # between two looks; AWS throttles more
LONGEST_WAIT_S = 60.0  # between two looks while AWS does not answer
PROGRESS_S = 60.0  # between two lines of progress where there is no live line: notebooks and files

STOPPED_BY = {
    "MaxRuntimeExceeded": "max_run_s was over",
    "MaxWaitTimeExceeded": "no spot capacity in max_wait_s",
}


@dataclass
class Outcome:
    """How far a job has come.

    Attributes:
        rows: the metrics that the log holds, as `curves.write_curves` takes them.
        latest: each metric's last value.
    """

    name: str
    metrics: tuple[str, ...] = ()  # names, as METRICS of src/options.py lists them
    job: dict[str, Any] = field(default_factory=dict)  # DescribeTrainingJob's answer
    lines: list[Line] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list, init=False)
    latest: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        given, self.lines = self.lines, []
        self.add(given)

    def add(self, lines: list[Line]) -> None:
        """Take lines of the log that came since; each is searched for metrics once."""
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
                f"{self.name} has logged no metrics that could be drawn", "follow it first"
            )
        curves.write_curves(rows, folder)
        return folder / "curves.png"


def follow(
    name: str, region: str, metrics: tuple[str, ...] = (), *, console: Any = None
) -> Outcome:
    """Print status changes, log lines and progress until the job has ended, and how it ended.

    A lost network, throttling and AWS's own failures are waited out; without permission to read
    logs, the status alone is followed. Ctrl-C ends the following, not the job.

    Args:
        name: of the training job.
        region: where it runs.
        metrics: names of those that its log holds, as METRICS of src/options.py lists them.
        console: of rich; by default standard output.
    """
    follower = Follower(name, region, metrics, console or terminal())
    outcome = follower.outcome
    try:
        with follower.console.status(name) as status:
            while not follower.ended:
                follower.look()
                if outcome.job:
                    status.update(progress(outcome))
                    follower.print_progress()
    except BaseException:  # Ctrl-C, or credentials that expired meanwhile
        if outcome.job and outcome.status not in ENDED:
            print_way_back(outcome.name, region, follower.console)
        raise
    report_ending(outcome, follower.console)
    return outcome


class Follower:
    """What is to be remembered between two looks at a job."""

    def __init__(self, name: str, region: str, metrics: tuple[str, ...], console: Any) -> None:
        self.outcome = Outcome(name, metrics)
        self.console = console
        self.ended = False
        self._sagemaker = aws.client("sagemaker", region)
        self._logs = aws.client("logs", region)  # None where it may not be read
        self._tokens: dict[str, str] = {}
        self._transitions = 0  # status changes that were printed
        self._failures = 0  # looks in a row without an answer
        self._wait_s = 0.0
        self._reported = time.monotonic()

    def look(self) -> None:
        """Wait, ask for status and log once, and print what is new."""
        from botocore.exceptions import BotoCoreError, ClientError

        if self._wait_s:
            time.sleep(self._wait_s)
        self._wait_s = min(POLL_S * 2 ** min(self._failures, 6), LONGEST_WAIT_S)
        try:
            job = describe(self.outcome.name, self._sagemaker)
            lines: list[Line] = []
            if self._logs:
                lines = job_log.new_lines(self.outcome.name, self._logs, self._tokens)
        except (BotoCoreError, ClientError) as problem:
            self._go_on_after(problem)
            return
        # The log comes later than the status: one more look after the job has ended.
        self.ended = self.outcome.status in ENDED
        self._failures = 0
        self._wait_s = POLL_S
        self.outcome.job = job
        self._print_transitions()
        self._print_lines(lines)

    def _go_on_after(self, problem: Exception) -> None:
        """Say once why AWS did not answer, and go on; raise what asking again does not cure."""
        operation = getattr(problem, "operation_name", "")
        if self._logs and aws.denied(problem) and "Log" in operation:
            self.console.print(f"{aws.explain(problem)}; following the status alone")
            self._logs = None
        elif aws.transient(problem):
            if not self._failures:
                self.console.print(f"{aws.explain(problem)}; asking again until there is an answer")
            self._failures += 1
        else:
            raise problem

    def _print_transitions(self) -> None:
        job = self.outcome.job
        transitions = job.get("SecondaryStatusTransitions", [])
        for step in transitions[self._transitions :]:
            after = clock((step["StartTime"] - job["CreationTime"]).total_seconds())
            message = step.get("StatusMessage", "")
            self.console.print(f"{after} {step['Status']} {message}", style="bold")
        self._transitions = max(self._transitions, len(transitions))

    def _print_lines(self, lines: list[Line]) -> None:
        several = _hosts(self.outcome.job) > 1
        for line in lines:
            self.console.print(f"{line.host} {line.text}" if several else line.text)
        self.outcome.add(lines)

    def print_progress(self) -> None:
        """A line each minute where the console has no live line."""
        if not self.console.is_terminal and time.monotonic() - self._reported > PROGRESS_S:
            self.console.print(progress(self.outcome))
            self._reported = time.monotonic()


def print_way_back(name: str, region: str, console: Any) -> None:
    """What to do about a job that runs on after the following has ended."""
    console.print(
        "\nThe job still runs and is billed. "
        f"To follow it again: python -m smlightning attach {name} --region {region}"
    )
    console.print(f"To stop it: python -m smlightning stop {name} --region {region}")
    console.print(f"In the console: {url(region)}/{name}")


def why(name: str, region: str) -> None:
    """Print how a job ended, which rank failed first, and its last lines."""
    from botocore.exceptions import ClientError

    console = terminal()
    outcome = Outcome(name, job=describe(name, aws.client("sagemaker", region)))
    try:
        outcome.add(job_log.new_lines(name, aws.client("logs", region), {}))
    except ClientError as problem:
        if not aws.denied(problem):
            raise
        console.print(f"{aws.explain(problem)}; what follows is from the status alone")
    report_ending(outcome, console)


def terminal() -> Any:
    """A console that prints plain lines, in notebooks and files too."""
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
    answer = aws.call(client, "Describe", "TrainingJob", name)
    if answer:
        return answer
    region = client.meta.region_name
    raise UserError(
        f'no training job "{name}" in {region}', f"name one of these, or --region: {url(region)}"
    )


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


def report_ending(outcome: Outcome, console: Any) -> None:
    """Print how the job ended, what is billed, and what to do next."""
    name, job = outcome.name, outcome.job
    if outcome.status == "Failed":
        report_failure(outcome, console)
    elif outcome.status == "Stopped":
        cause = STOPPED_BY.get(job.get("SecondaryStatus", ""), "someone asked for it")
        checkpoints = job.get("CheckpointConfig", {}).get("S3Uri")
        resume = "It kept no checkpoints."
        if checkpoints:
            resume = f'To resume from its checkpoints: checkpoint_s3 = "{checkpoints}"'
        console.print(f"{name} was stopped: {cause}. {resume}", style="bold yellow")
    elif outcome.status == "Completed":
        fetch = f"python -m smlightning fetch {name}"
        console.print(f"{name} completed. To fetch its model: {fetch}", style="bold green")
    else:
        console.print(f"{name} has not ended: {progress(outcome)}", style="bold")
    report_bill(job, console)


def report_failure(outcome: Outcome, console: Any) -> None:
    """Print AWS's reason, and the last lines of the rank that failed first."""
    reason = outcome.job.get("FailureReason", "AWS gives no reason")
    console.print(f"{outcome.name} failed: {reason}", style="bold red")
    advice = cure_of(reason)
    if advice:
        console.print(advice)
    who, lines = job_log.first_failure(outcome.lines)
    if lines:
        console.print(f"The last lines of {who}, which failed first:", style="bold")
        for text in lines:
            console.print(f"  {text}")


# What AWS's reason of a failure says → what can be done. The first words are those of capacity
# (https://repost.aws/knowledge-center/sagemaker-insufficient-capacity-error).
CURES = {
    r"CapacityError|[Ii]nsufficient ?(Instance)?Capacity|requested ML compute capacity": (
        "AWS had no such instances free in the zones of your subnets. Send the job again later; "
        'or name several types, instance_type = ["ml.p4d.24xlarge", "ml.p4de.24xlarge"]; or add '
        "subnets of other zones, another region, or a training plan, which reserves capacity."
    ),
    r"ResourceLimitExceeded|service limit|account-level": (
        "The account's quota is used up: ask for more in the Service Quotas console, or stop jobs."
    ),
    r"(?i)out of memory|OutOfMemory|Cannot allocate memory|exit code:? (137|-9)\b": (
        "Memory did not suffice: lower batch_size and raise accumulate_grad_batches, which keeps "
        "the global batch; or take instances with more memory."
    ),
    r"(?i)bus error|shared memory|/dev/shm": (
        "The container's /dev/shm was full, and SageMaker has no setting for it: lower "
        "num_workers or prefetching, or pass less through the loader's workers."
    ),
}


def cure_of(reason: str) -> str:
    """What can be done about a failure, by AWS's reason; empty where that is not known here."""
    return next((cure for words, cure in CURES.items() if re.search(words, reason)), "")


def report_bill(job: dict[str, Any], console: Any) -> None:
    """Print how long the job trained and what is billed, once AWS says so."""
    trained = job.get("TrainingTimeInSeconds")
    billed = job.get("BillableTimeInSeconds")
    if not trained or billed is None:
        return
    saved = ""
    if job.get("EnableManagedSpotTraining"):
        saved = f"; spot saved {1 - billed / trained:.0%}"
    hosts = _hosts(job)
    instances = "1 instance" if hosts == 1 else f"{hosts} instances"
    console.print(
        f"It trained {clock(trained)} and is billed {clock(billed)} on {instances}{saved}."
    )


def _hosts(job: dict[str, Any]) -> int:
    """The hosts of a job; of several candidates, before one is selected, the first's."""
    return sum(group.count for group in resources.candidates(job["ResourceConfig"])[0])


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def url(region: str) -> str:
    """Where the AWS console shows training jobs."""
    return f"https://{region}.console.aws.amazon.com/sagemaker/home?region={region}#/jobs"
