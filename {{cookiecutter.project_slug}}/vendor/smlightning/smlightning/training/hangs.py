"""Which rank a hang is of, by what each rank says of itself; and where a process is in its code.

In a hang the ranks wait for one another in some collective, and the one that has come least far is
the one that they wait for. A process that is paused or lost says nothing.
"""

import json
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType

from smlightning.cluster.ending import End
from smlightning.cluster.location import Cluster
from smlightning.errors import PACKAGE, is_users_file

NAMED_PLACES = 8  # of so many ranks a verdict says where they were


@dataclass(frozen=True)
class Heartbeat:
    """What a rank says of itself every few seconds."""

    number: int
    marks: int  # how far its training has come
    idle: float  # seconds since its last mark, as far as they count
    place: str  # what it was doing, and where in the code
    seconds: float  # since its last mark

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> "Heartbeat":
        """The heartbeat that ``dumps`` made a text of."""
        return Heartbeat(**json.loads(text))


@dataclass(frozen=True)
class Heard:
    """The latest heartbeat of a rank, and when it was first read (``time.monotonic()``)."""

    heartbeat: Heartbeat
    at: float


def find_hang(
    latest: Mapping[int, Heard], now: float, limit: float, cluster: Cluster
) -> End | None:
    """The end of a job in which a rank has been silent or idle for ``limit`` seconds; else None.

    Args:
        latest: of each rank that was ever heard of.
    """
    silent = {rank: now - heard.at for rank, heard in latest.items() if now - heard.at > limit}
    if silent:
        problems = [
            f"{cluster.name(rank)} has not been heard of for {seconds:.0f} s"
            for rank, seconds in silent.items()
        ]
        return _verdict(problems, latest, "see its log and the stacks of the others")
    if not any(heard.heartbeat.idle > limit for heard in latest.values()):
        return None
    least = min(heard.heartbeat.marks for heard in latest.values())
    late = {rank: heard for rank, heard in latest.items() if heard.heartbeat.marks == least}
    if len(late) == cluster.world_size > 1:
        problems = ["no rank goes on, and all are in one place"]
        cure = "look at the network between the hosts, and at the disk of the checkpoints"
        return _verdict(problems, latest, cure)
    problems = [
        f"{cluster.name(rank)} stopped taking part "
        f"{heard.heartbeat.seconds + now - heard.at:.0f} s ago"
        for rank, heard in late.items()
    ]
    return _verdict(problems, latest, "see its stacks in its log")


def _verdict(problems: list[str], latest: Mapping[int, Heard], cure: str) -> End:
    places = [
        f"rank {rank} was in {heard.heartbeat.place}" for rank, heard in sorted(latest.items())
    ]
    return End("failed", ", ".join([*problems, *places[:NAMED_PLACES]]), cure)


def main_thread_frames() -> Iterator[FrameType]:
    """Frames of the main thread, the innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def main_thread_place(outer: Collection[CodeType]) -> str:
    """File, line and function where the main thread is: the innermost of the owner's code.

    Where the owner's code called the package or a library, its own line says more than theirs.
    Where none of it is on the stack, it is the package's innermost line, else the innermost of all.

    Args:
        outer: code on the stack of every rank, whatever it does, such as the entry file's.
    """
    frames = [frame for frame in main_thread_frames() if frame.f_code not in outer]
    own = [frame for frame in frames if is_users_file(frame.f_code.co_filename)]
    packages = [frame for frame in frames if frame.f_code.co_filename.startswith(PACKAGE)]
    for frame in [*own[:1], *packages[:1], *frames[:1]]:
        file = Path(frame.f_code.co_filename).name
        return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
    return "no code"
