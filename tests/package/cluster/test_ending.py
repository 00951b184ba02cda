"""A job's end: ranks wait for rank 0, hear of its cause and know of one that vanished."""

import os
from pathlib import Path

import forked
from smlightning.testing.environment import outside_a_job
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


def start(folder: Path, rank: int, what: str, size: int) -> list[forked.Rank]:
    env = dict(
        outside_a_job(os.environ),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        CUDA_VISIBLE_DEVICES="",
    )
    folder.mkdir()
    return [
        forked.start(
            ENDING % what,
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
        found, said = zip(*[process.wait(120) for process in job], strict=True)
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
