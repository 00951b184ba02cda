"""Checks that logged checkpoints arrive in S3, and computes what a stop now would lose.

SageMaker copies them while the job runs, and may cease to (sagemaker-python-sdk#3062).
"""

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from smlightning.files import CHECKPOINT
from smlightning_sagemaker.findings import Finding, warning
from smlightning_sagemaker.follow.job_log import Line
from smlightning_sagemaker.job import aws

KEY = "checkpoint_s3"  # of job.toml
LOCAL_PATH = "/opt/ml/checkpoints"  # that SageMaker copies by default (API_CheckpointConfig)
START = "launcher: "  # the line with which each attempt begins (cluster/session.py)
STEP = re.compile(r"step=(\d+)\s")
SHARD = re.compile(r"(\d{6,})-\d{5}-of-\d{5}-[0-9a-f]{16}\.shard")
SHORTEST_WAIT_S = 120.0  # for a copy to S3 or for a checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in the log or in S3.

    Attributes:
        time: when it was logged, or arrived; seconds since 1970.
        folder: that training wrote it to; empty in S3.
        shards: files next to it that it needs.
    """

    number: int
    step: int
    name: str
    time: float
    folder: str = ""
    shards: int = 0


class Checkpoints:
    """The checkpoints of a job, in its log and in S3.

    Attributes:
        stored: the newest one in S3 that is complete.
        step: the newest step in the log; None before an attempt's first.
    """

    def __init__(self, minutes: float) -> None:
        """`minutes` between two checkpoints, unless the job sets its own."""
        self.stored: Checkpoint | None = None
        self.step: int | None = None
        self._unreadable: Exception | None = None  # it hid S3 from the last look
        self._minutes = minutes
        self._logged: dict[int, Checkpoint] = {}  # by number
        self._started = 0.0  # the time of the first step of the newest attempt

    def add(self, line: Line) -> None:
        """Take what a line of the log says."""
        text, seconds = line.message, line.time_ms / 1000
        if text.startswith(START):
            self.step = None
            self._logged.clear()
        elif match := STEP.match(text):
            if self.step is None:
                self._started = seconds
            self.step = int(match[1])
        elif match := CHECKPOINT.match(text):
            number, step, shards = int(match[3]), int(match[4]), int(match[5] or 0)
            self._logged[number] = Checkpoint(number, step, match[2], seconds, match[1], shards)

    def look(self, job: dict[str, Any], region: str) -> None:
        """Find the newest checkpoint in S3."""
        from botocore.exceptions import BotoCoreError, ClientError

        uri = address(job)
        if not uri:
            return
        self._unreadable = None
        try:
            listed = list(aws.all_objects(f"{uri}/", aws.client("s3", region)))
        except (BotoCoreError, ClientError) as problem:
            self._unreadable = problem
            return
        names = [item["Key"].rpartition("/")[2] for item in listed]
        shards = [int(match[1]) for match in map(SHARD.fullmatch, names) if match]
        found = []
        for name, item in zip(names, listed, strict=True):
            match = CHECKPOINT.match(f"checkpoint: {name}")
            if not match:
                continue
            number, step = int(match[3]), int(match[4])
            logged = self._logged.get(number)
            if not logged or shards.count(number) >= logged.shards:
                found.append(Checkpoint(number, step, name, item["LastModified"].timestamp()))
        self.stored = max(found, key=lambda each: each.number, default=None)

    def problem(self, job: dict[str, Any], region: str, *, has_log: bool) -> str:
        """Look at S3 again, and return a sentence if something is wrong; the arguments: `warning`.

        The sentence stays the same at each look, so that it is printed once.
        """
        self.look(job, region)
        if self._unreadable:
            reason = aws.explain(self._unreadable)
            return f"{reason}; whether checkpoints arrive in S3 is not known"
        return str(self.warning(job, time.time(), has_log=has_log) or "")

    @property
    def lost(self) -> int:
        """The steps in the log that a stop now would lose, at most."""
        return max((self.step or 0) - (self.stored.step if self.stored else 0), 0)

    @property
    def missing(self) -> list[Checkpoint]:
        """Checkpoints in the log that are newer than the newest one in S3, the oldest first."""
        newest = self.stored.number if self.stored else 0
        return [self._logged[number] for number in sorted(self._logged) if number > newest]

    def state(self, job: dict[str, Any], now: float) -> str:
        """The newest checkpoint in S3, its age, and the loss by a stop; empty if unknown."""
        if self._unreadable or not address(job) or (self.step is None and not self.stored):
            return ""
        found = "no checkpoint in S3"
        if self.stored:
            age = max(int(now - self.stored.time), 0) // 60
            found = f"checkpoint of step {self.stored.step} in S3, {age} min old"
        return found if self.step is None else f"{found}, a stop now loses {self.lost} steps"

    def ending(self, job: dict[str, Any]) -> str:
        """A sentence about the checkpoints in S3 of a job that has ended."""
        if self._unreadable or not address(job):
            return ""
        found = "S3 holds no checkpoint of it"
        if self.stored:
            found = f"Its newest checkpoint in S3 is {self.stored.name}"
        missing = self.missing
        late = f"; {missing[-1].name} was written, and did not arrive" if missing else ""
        lost = f"; the last {self.lost} steps of its log are lost" if self.lost else ""
        return f"{found}{late}{lost}."

    def warning(self, job: dict[str, Any], now: float, *, has_log: bool) -> Finding | None:
        """Warning about the checkpoints of a job that trains, or None.

        Args:
            job: DescribeTrainingJob's answer.
            now: seconds since 1970.
            has_log: whether the job's log can be read.
        """
        if job.get("SecondaryStatus") != "Training" or self._unreadable:
            return None
        uri = address(job)
        if not uri:
            problem = "the job copies no checkpoint to S3: an interruption loses all steps"
            return warning(KEY, problem, 'set checkpoint_s3 = "auto" for the next job')
        if self.missing:
            return self._not_arrived(job, now)
        since = max(self._started, self.stored.time if self.stored else 0, _training_since(job))
        wait_s = max(2 * self._interval_s(job), SHORTEST_WAIT_S)
        loses = self.lost > 0 or not has_log
        if not loses or now - since < wait_s:
            return None
        problem = f"no checkpoint has come to {uri} since {clock_time(since)}"
        cure = (
            "a long validation writes none; otherwise see in the log of rank 0 whether training "
            "goes on, and lower --checkpoint_minutes in the next job"
        )
        return warning(KEY, problem, cure)

    def _not_arrived(self, job: dict[str, Any], now: float) -> Finding | None:
        """A warning about checkpoints that training wrote and S3 does not have in time, or None."""
        oldest, uri = self.missing[0], address(job)
        copied = job["CheckpointConfig"].get("LocalPath", LOCAL_PATH)
        if not PurePosixPath(oldest.folder).is_relative_to(copied):
            problem = f"training writes to {oldest.folder}, and SageMaker copies {copied}"
            cure = "remove CheckpointConfig.LocalPath from [request] in the next job"
            return warning(KEY, problem, cure)
        if now - oldest.time < max(self._interval_s(job), SHORTEST_WAIT_S):
            return None
        problem = f"{oldest.name} was written at {clock_time(oldest.time)} and is not in {uri}"
        cure = (
            "let the job's role write there (s3:PutObject, and kms:GenerateDataKey with a key); "
            f'if it may, stop the job and send it again with checkpoint_s3 = "{uri}"'
        )
        return warning(KEY, problem, cure)

    def _interval_s(self, job: dict[str, Any]) -> float:
        """Seconds between two checkpoints of the job, at most."""
        minutes = self._minutes
        with suppress(KeyError, ValueError, TypeError):
            minutes = float(json.loads(job["HyperParameters"]["checkpoint_minutes"]))
        return 60 * minutes


def address(job: dict[str, Any]) -> str:
    """The S3 address of a job's checkpoints, without a slash at its end; empty if it has none."""
    return str(job.get("CheckpointConfig", {}).get("S3Uri", "")).rstrip("/")


def _training_since(job: dict[str, Any]) -> float:
    """The time when the job's newest attempt began to train; seconds since 1970."""
    transitions = job.get("SecondaryStatusTransitions", [])
    starts = [each["StartTime"] for each in transitions if each["Status"] == "Training"]
    return starts[-1].timestamp() if starts else job["CreationTime"].timestamp()


def clock_time(seconds: float) -> str:
    """A time since 1970 as a clock shows it here."""
    return time.strftime("%H:%M", time.localtime(seconds))
