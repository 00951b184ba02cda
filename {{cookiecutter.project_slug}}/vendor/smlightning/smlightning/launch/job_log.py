"""The log of a job: its lines from CloudWatch, their metrics, and which rank failed first."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smlightning.launch import aws
from smlightning.reports import log

# Its streams: <job>/algo-<n>-<timestamp>, one for each host and attempt.
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MOST_PAGES = 100  # of one look
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


class Log:
    """The log of one job in CloudWatch, read on from where the last look ended.

    Attributes:
        problem: why the last look could not read on; None if nothing was in its way.
        lost: what AWS answered of a stream that was deleted before its end; the others are read on.
        complete: whether the last look reached the end of every stream.
        pages: how many pages the last look read.
    """

    def __init__(self, job_name: str, client: Any, *, last_attempt: bool = False) -> None:
        """`last_attempt` reads of each host only the stream that was made last."""
        self.problem: Exception | None = None
        self.lost: Exception | None = None
        self.complete = False
        self.pages = 0
        self._job_name = job_name
        self._client = client
        self._last_attempt = last_attempt
        self._tokens: dict[str, str] = {}  # where the reading of each stream stands
        self._finished: set[str] = set()  # streams that no line is added to any more
        self._last: set[str] = set()  # the last stream of each host
        self._unread: list[str] = []  # what is left of this round through the streams

    def restart(self) -> None:
        """Begin the next look with a new round through all streams that may have grown."""
        self._unread = []

    def new_lines(self) -> list[Line]:
        """Lines that came since the last look, in order of time.

        What was read before a problem is returned, and the next look goes on behind it. A look ends
        after MOST_PAGES, so that somebody who follows a long log sees the job's status meanwhile.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        lines: list[Line] = []
        self.problem, self.complete, self.pages = None, False, 0
        try:
            if not self._unread:
                self._list_streams()
            while self._unread and self.pages < MOST_PAGES:
                if self._read_page(self._unread[0], lines):
                    del self._unread[0]
            self.complete = not self._unread
        except (BotoCoreError, ClientError) as problem:
            self.problem = problem
        return sorted(lines, key=lambda line: line.time_ms)

    def _list_streams(self) -> None:
        """Begin a round with the streams that may have lines which were not read yet."""
        pages = self._client.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self._job_name}/"
        )
        names = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
        names.sort(key=lambda name: name.rpartition("-")[2])  # by the time of the attempt
        self._last = set({host_of(name): name for name in names}.values())
        wanted = self._last if self._last_attempt else set(names)
        self._unread = [name for name in names if name in wanted - self._finished]

    def _read_page(self, stream: str, lines: list[Line]) -> bool:
        """Append a page of the stream; whether it was the last one."""
        from botocore.exceptions import ClientError

        token = self._tokens.get(stream)
        since = {"nextToken": token} if token else {}
        try:
            page = self._client.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **since
            )
        except ClientError as problem:
            if not aws.missing(problem):
                raise
            self.lost = problem
            self._finished.add(stream)
            return True
        self.pages += 1
        for event in page["events"]:
            lines.append(Line(event["timestamp"], host_of(stream), event["message"].rstrip()))
        self._tokens[stream] = page["nextForwardToken"]
        # At the end the token that was sent comes back; a page before the end may be empty.
        at_end = token == page["nextForwardToken"]
        if at_end and stream not in self._last:
            self._finished.add(stream)
        return at_end


def host_of(stream: str) -> str:
    """The host that writes a stream, as in algo-1."""
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
