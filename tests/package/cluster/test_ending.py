"""A job's end: ranks wait for rank 0, hear of its cause and know of one that vanished."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked
from smlightning.cluster import memory_kills
from smlightning.testing.environment import of_tests
from smlightning.testing.processes import free_port

ENDING = """
import os, signal, sys, threading, time
import dist
from smlightning import errors
from smlightning.cluster import ending, signals
ending.SILENT_SECONDS = ending.CAUSE_SECONDS = 3.0
signals.install()
def later(number):
    threading.Timer(1, os.kill, (os.getpid(), number)).start()
def hide():  # as fsspec's exists does
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except:
        pass
    raise FileNotFoundError("not what ended it")
try:
    with dist.session() as cluster:
        if cluster.rank == int(sys.argv[1]):
            %s
        if cluster.rank == 0:
            time.sleep(3)
            print(f"saved at {time.time()}")
except errors.UserError as error:
    sys.exit(f"error: {error}")
print(f"ended at {time.time()}")
sys.exit(signals.complete())
"""


CASES = [  # a rank, what it does, exit statuses, words of the other
    (0, "pass", [0, 0], "ended at"),
    (
        0,
        "raise ValueError('no room')",
        [1, 1],
        "had to end: rank 0 on host localhost failed: ValueError: no room",
    ),
    (0, "later(signal.SIGTERM)", [143, 143], ""),
    (
        0,
        "later(signal.SIGKILL)",
        [-9, 1],
        "rank 0 on host localhost exited without an error message",
    ),
    (1, "later(signal.SIGTERM)", [143, 143], ""),  # it waits for rank 0 by then
    (0, "hide()", [143, 143], ""),
    (1, "hide()", [143, 143], ""),
    (
        1,
        "later(signal.SIGKILL)",
        [1, -9, 0],
        "had to end: rank 1 on host localhost exited without an error message",
    ),
]


def start(folder: Path, rank: int, what: str, size: int, before: str = "") -> list[forked.Rank]:
    """Ranks of which that one does ``what``, each after ``before``."""
    env = dict(
        of_tests(os.environ),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        CUDA_VISIBLE_DEVICES="",
    )
    folder.mkdir()
    return [
        forked.start(
            before + ENDING % what,
            folder / str(i),
            env | {"RANK": str(i), "LOCAL_RANK": str(i)},
            str(rank),
        )
        for i in range(size)
    ]


def test_the_others_wait_until_rank_0_is_done(tmp_path: Path) -> None:
    """All cases at once: most of their time is waiting."""
    jobs = [
        start(tmp_path / str(number), rank, what, len(statuses))
        for number, (rank, what, statuses, _) in enumerate(CASES)
    ]
    for job, (rank, what, statuses, words) in zip(jobs, CASES, strict=True):
        found, said = forked.wait_for_all(job, 120)
        assert list(found) == statuses, (rank, what, said)
        other = said[1 if rank == 0 else 0]
        assert words in other and "Traceback" not in other, (rank, what, said)
        assert statuses != [143, 143] or "Error" not in said[0] + said[1], (rank, what, said)
        if statuses == [0, 0]:
            saved, ended = (
                float(text.split(f"{word} at ")[1].split()[0])
                for word, text in zip(("saved", "ended"), said, strict=True)
            )
            assert ended > saved


GROUPS = Path("/sys/fs/cgroup")
JOIN = """
with open({file!r}, "w") as file:
    file.write(str(__import__("os").getpid()))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group whose processes get 300 MiB beside what they share with this one."""
    versions = {GROUPS / "memory": "memory.limit_in_bytes", GROUPS: "memory.max"}
    parent = next(parent for parent in versions if parent.exists())
    folder = parent / f"smlightning-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / versions[parent]).write_text(str(300 * 2**20))
    except OSError as error:
        pytest.skip(f"no control group can be made ({error}): run as root on a machine of your own")
    yield folder
    for _ in range(100):  # until what ended in it is gone
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def test_a_rank_that_the_kernel_kills_for_want_of_memory(group: Path, tmp_path: Path) -> None:
    join = JOIN.format(file=str(group / "cgroup.procs"))
    job = start(tmp_path / "job", 1, "bytearray(b'x') * 2**30", 2, join)
    statuses, (said, _) = forked.wait_for_all(job, 120)
    assert statuses == (1, -9), said
    words = "had to end: rank 1 on host localhost exited without an error message, and the kernel"
    assert f"{words} of host localhost killed 1 process for lack of memory; lower batch" in said


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        ("5:cpu:/a\n4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control"),
        ("4:memory:/of/the/host\n", "memory/memory.oom_control"),
        ("0::/a/b\n", "a/b/memory.events"),
        ("0::/of/the/host\n", "memory.events"),
        ("", "memory.events"),
    ],
)
def test_where_linux_counts_what_it_killed(lines: str, file: str, tmp_path: Path) -> None:
    """Both versions of control groups, from the machine and from a container."""
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    assert memory_kills.count(groups, own) == 0
    own.write_text(lines)
    (groups / file).parent.mkdir(parents=True)
    (groups / file).write_text("oom 9\noom_kill_disable 0\noom_kill 3\noom_group_kill 0\n")
    assert memory_kills.count(groups, own) == 3
