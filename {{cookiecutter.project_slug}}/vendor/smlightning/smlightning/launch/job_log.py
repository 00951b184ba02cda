"""The log of a job: its lines from CloudWatch, their metrics, and which rank failed first."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smlightning.reports import log

LOG_GROUP = "/aws/sagemaker/TrainingJobs"  # its streams: <job>/algo-<n>-<timestamp>, one a host
# How a line names its rank: "[rank3]: " of torch before tracebacks, and of mpirun before every line
# "[1,mpirank:3,algo-1]<stdout>:".
RANK = re.compile(r"^\[rank(\d+)\]: ?|^\[\d+,(?:mpirank:)?(\d+)[^\]]*\]<std(?:out|err)>:\s?")
ROOT_CAUSE = re.compile(r"Root Cause.*?\brank\s*:\s*(\d+)", re.S)  # torchrun's last table
FAILURE = re.compile(r"Traceback \(most recent call last\)|^(\w+\.)*\w*Error\b|^error: ")


@dataclass(frozen=True)
class Line:
    """A line of a job's log."""

    time_ms: int  # since 1970
    host: str  # algo-1
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that the line names as its own."""
        match = RANK.match(self.text)
        return int(match[1] or match[2]) if match else None

    @property
    def message(self) -> str:
        """The text without the rank's prefix."""
        return RANK.sub("", self.text)


def metrics(line: Line, names: Iterable[str]) -> dict[str, float]:
    """Step, epoch and those of the named metrics that the line holds; empty without a metric."""
    names = tuple(names)
    values: dict[str, float] = {}
    for name in ("step", "epoch", *names):
        match = re.search(log.metric_regex(name), line.message)
        if match:
            with suppress(ValueError):  # "epoch 3..." is no number
                values[name] = float(match[1])
    return values if values.keys() & set(names) else {}


def new_lines(job_name: str, logs: Any, tokens: dict[str, str]) -> list[Line]:
    """The lines of all hosts since the last call, in order of time.

    Args:
        job_name: of the training job.
        logs: a boto3 client of CloudWatch Logs.
        tokens: where the reading of each stream stands. It moves on once all streams were read, so
            no line is lost where one of them cannot be read.
    """
    lines: list[Line] = []
    position = dict(tokens)
    try:
        listing = logs.get_paginator("describe_log_streams")
        pages = listing.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job_name}/")
        streams = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
    except logs.exceptions.ResourceNotFoundException:
        return []  # no job of this account has logged yet
    for stream in streams:
        host = "-".join(stream.rpartition("/")[2].split("-")[:2])
        while True:
            since = {"nextToken": position[stream]} if stream in position else {}
            page = logs.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **since
            )
            for event in page["events"]:
                lines.append(Line(event["timestamp"], host, event["message"].rstrip()))
            # At the end the token that was sent comes back; a page before the end may be empty.
            if position.get(stream) == page["nextForwardToken"]:
                break
            position[stream] = page["nextForwardToken"]
    tokens.update(position)
    return sorted(lines, key=lambda line: line.time_ms)


def first_failure(lines: list[Line], count: int = 20) -> tuple[str, list[str]]:
    """Who failed first, and the last lines of that rank, else of that host.

    The other ranks fail a moment later because of it, so a log's last lines seldom name the cause.
    torchrun names the rank in its root cause; else it is the first with a traceback or an error.
    """
    cause = ROOT_CAUSE.search("\n".join(line.message for line in lines))
    failures = [line for line in lines if FAILURE.search(line.message)]
    named = [line for line in failures if cause and line.rank == int(cause[1])]
    candidates = named or failures or lines[-1:]
    if not candidates:
        return "", []
    first = candidates[0]
    same = [line.text for line in lines if (line.host, line.rank) == (first.host, first.rank)]
    who = first.host if first.rank is None else f"rank {first.rank} on {first.host}"
    return who, same[-count:]
