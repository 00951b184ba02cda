"""Read the log of a job from CloudWatch: lines, metrics, and the rank that failed first."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smlightning.reports import log
from smlightning_sagemaker.job import aws

# The rank in a line: "[rank3]: " of torch before tracebacks, and of mpirun before every line
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
        """The rank that wrote the line; None if the line does not say it."""
        match = RANK.match(self.text)
        return int(match[1] or match[2]) if match else None

    @property
    def message(self) -> str:
        """The text without the rank's prefix."""
        return RANK.sub("", self.text)


def metrics(line: Line, names: Iterable[str]) -> dict[str, float]:
    """Step, epoch and metrics of a line, by name; empty if it has none of these metrics."""
    names = tuple(names)
    values: dict[str, float] = {}
    for name in ("step", "epoch", *names):
        match = re.search(log.metric_regex(name), line.message)
        if match:
            with suppress(ValueError):  # "epoch 3..." is no number
                values[name] = float(match[1])
    return values if values.keys() & set(names) else {}


class Log:
    """The log of one job in CloudWatch, read on from where the last look ended.

    Attributes:
        problem: the error that hid a part of the log from the last look, or None.
    """

    def __init__(self, job_name: str, client: Any, *, last_attempt: bool = False) -> None:
        """`last_attempt` reads only the newest stream of each host."""
        self.problem: Exception | None = None
        self._job_name = job_name
        self._client = client
        self._last_attempt = last_attempt
        self._tokens: dict[str, str] = {}  # the position in each stream
        self._finished: set[str] = set()  # streams of earlier attempts, read to their end

    def new_lines(self) -> list[Line]:
        """The lines since the last look, in order of time; after a problem those before it."""
        from botocore.exceptions import BotoCoreError, ClientError

        lines: list[Line] = []
        self.problem = None
        try:
            streams = self._streams()
            newest = list({host_of(name): name for name in streams}.values())
            for stream in newest if self._last_attempt else streams:
                if stream not in self._finished:
                    self._read(stream, lines)
                    if stream not in newest:
                        self._finished.add(stream)
        except (BotoCoreError, ClientError) as problem:
            self.problem = problem
        return sorted(lines, key=lambda line: line.time_ms)

    def _streams(self) -> list[str]:
        """The names of the job's streams, the oldest attempt first."""
        pages = self._client.get_paginator("describe_log_streams").paginate(
            logGroupName=aws.LOG_GROUP, logStreamNamePrefix=f"{self._job_name}/"
        )
        names = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
        return sorted(names, key=lambda name: name.rpartition("-")[2])

    def _read(self, stream: str, lines: list[Line]) -> None:
        """Append the new lines of a stream."""
        from botocore.exceptions import ClientError

        at_end = False
        while not at_end:
            token = self._tokens.get(stream)
            since = {"nextToken": token} if token else {}
            try:
                page = self._client.get_log_events(
                    logGroupName=aws.LOG_GROUP, logStreamName=stream, startFromHead=True, **since
                )
            except ClientError as problem:
                if not aws.missing(problem):
                    raise
                self.problem = problem  # deleted; the other streams are read on
                return
            for event in page["events"]:
                lines.append(Line(event["timestamp"], host_of(stream), event["message"].rstrip()))
            self._tokens[stream] = page["nextForwardToken"]
            # At the end the same token comes back; a page before the end may be empty.
            at_end = token == page["nextForwardToken"]


def host_of(stream: str) -> str:
    """The host that writes a stream: algo-1."""
    return "-".join(stream.rpartition("/")[2].split("-")[:2])


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
