"""Finds the rank that hangs from the ranks' heartbeats, and the line that a process executes.

In a hang the ranks wait in some collective for the rank that has made the least progress. A process
that is paused or lost sends no heartbeats.
"""

import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from smlightning.cluster.location import Cluster
from smlightning.cluster.session import End
from smlightning.errors import PACKAGE, is_users_file

NAMED_PLACES = 8  # ranks whose places a verdict lists


@dataclass(frozen=True)
class Heartbeat:
    """A rank's report on itself, every few seconds."""

    number: int
    marks: int  # progress of its training
    idle: float  # seconds since its last mark, less for slow phases
    place: str  # its activity and its line of code
    seconds: float  # since its last mark


@dataclass(frozen=True)
class Heard:
    """The latest heartbeat of a rank, and the time of its first reading (``time.monotonic()``)."""

    heartbeat: Heartbeat
    at: float


def find_hang(
    latest: Mapping[int, Heard], now: float, limit: float, cluster: Cluster
) -> End | None:
    """The end of a job in which a rank has been silent or idle for ``limit`` seconds; else None.

    Args:
        latest: the heartbeat of each rank that has sent one.
    """
    silent = {rank: now - heard.at for rank, heard in latest.items() if now - heard.at > limit}
    if silent:
        problems = [
            f"{cluster.name(rank)} has been silent for {seconds:.0f} s"
            for rank, seconds in silent.items()
        ]
        return _verdict(problems, latest, "see its log and the stacks of the others")
    if not any(heard.heartbeat.idle > limit for heard in latest.values()):
        return None
    least = min(heard.heartbeat.marks for heard in latest.values())
    late = {rank: heard for rank, heard in latest.items() if heard.heartbeat.marks == least}
    if len(late) == cluster.world_size > 1:
        problems = ["no rank makes progress, and all are at the same point"]
        cure = "check the network between the hosts, and the disk of the checkpoints"
        return _verdict(problems, latest, cure)
    problems = [
        f"{cluster.name(rank)} made its last progress "
        f"{heard.heartbeat.seconds + now - heard.at:.0f} s ago"
        for rank, heard in late.items()
    ]
    return _verdict(problems, latest, "see its stacks in its log")


def _verdict(problems: list[str], latest: Mapping[int, Heard], cure: str) -> End:
    places = [
        f"rank {rank} was in {heard.heartbeat.place}" for rank, heard in sorted(latest.items())
    ]
    return End("failed", ", ".join([*problems, *places[:NAMED_PLACES]]), cure)


def main_thread_frames() -> list[FrameType]:
    """Frames of the main thread, the innermost first; none once Python ends."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    return [frame for frame, _ in traceback.walk_stack(innermost)] if innermost else []


def main_thread_place(outer: Collection[CodeType]) -> str:
    """File, line and function of the main thread: the innermost line of the user's code.

    If the stack has none, it is the innermost line of the package, else the innermost of all.

    Args:
        outer: code that is always on the stack, such as the entry file's.
    """
    frames = [frame for frame in main_thread_frames() if frame.f_code not in outer]
    own = [frame for frame in frames if is_users_file(frame.f_code.co_filename)]
    packages = [frame for frame in frames if frame.f_code.co_filename.startswith(PACKAGE)]
    for frame in [*own[:1], *packages[:1], *frames[:1]]:
        file = Path(frame.f_code.co_filename).name
        return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
    return "no code"
