"""A job's end: ranks wait for rank 0, hear of its cause and know of one that vanished."""

import os
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "rank, what, statuses, words",
    [
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
    ],
)
def test_the_others_wait_until_rank_0_is_done(
    rank: int, what: str, statuses: list[int], words: str, tmp_path: Path
) -> None:
    size = str(len(statuses))
    env = dict(
        outside_a_job(os.environ),
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        CUDA_VISIBLE_DEVICES="",
    )
    ranks = [
        forked.start(
            ENDING % what,
            tmp_path / str(i),
            env | {"RANK": str(i), "LOCAL_RANK": str(i)},
            str(rank),
        )
        for i in range(len(statuses))
    ]
    found, said = zip(*[process.wait(120) for process in ranks], strict=True)
    assert list(found) == statuses, said
    other = said[1 if rank == 0 else 0]
    assert words in other and "Traceback" not in other, said
    assert statuses != [143, 143] or "Error" not in said[0] + said[1], said
    if statuses == [0, 0]:
        saved, ended = (
            float(text.split(f"{word} at ")[1].split()[0])
            for word, text in zip(("saved", "ended"), said, strict=True)
        )
        assert ended > saved
