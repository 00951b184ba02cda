"""One thread of a rank ends it: after a signal, after another rank's end, and after a hang."""

import os
import signal
import time
from pathlib import Path

import pytest
import small
from test_failures import start

import forked
from smlightning.cluster import watch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

LISTS_THREADS = """
import sys, threading, time
import model, train
from smlightning import entry

def lasting(seconds):  # libraries' threads have a class of their own
    def running():
        return {each for each in threading.enumerate() if type(each) is threading.Thread}
    before = running()
    time.sleep(seconds)
    return sorted(each.name for each in before & running())

def list_threads(self):
    if self.trainer.current_epoch == 1:
        print("threads:", *lasting(2.5), flush=True)

model.Model.on_train_epoch_end = list_threads
sys.exit(entry.main(train.train, train.Options, None))
"""


def test_a_rank_has_a_thread_that_watches_and_one_that_writes_checkpoints(tmp_path: Path) -> None:
    options = {**small.options(tmp_path), "checkpoint_steps": 2}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    ranks = forked.start_ranks(LISTS_THREADS, tmp_path, 2, *words)
    statuses, said = forked.wait_for_all(ranks, 120)
    assert statuses == (0, 0), said
    for text, names in zip(said, ("checkpoint_0 watch", "watch"), strict=True):
        assert f"threads: {names}\n" in text, said


FROZEN = """
from smlightning.cluster import signals
signals.install()

def before_step(model, i):
    if RANK == 0 and i == 10:
        print("frozen", flush=True)
        os.kill(os.getpid(), 19)

with dist.session():
    fit(hang_seconds={seconds})
"""


@pytest.mark.parametrize(
    ("is_stopped", "seconds"), [(False, 4), pytest.param(True, 60, marks=pytest.mark.long)]
)
def test_a_rank_ends_although_the_store_does_not_answer(
    is_stopped: bool, seconds: int, tmp_path: Path
) -> None:
    """Rank 0, which keeps the store, is paused; rank 1 waits for it in native code."""
    first, second = start(tmp_path, FROZEN.format(seconds=seconds))
    try:
        while not (first.log.exists() and "frozen" in first.log.read_text()):
            assert first.process.is_alive()
            time.sleep(0.1)
        if is_stopped:
            time.sleep(2 * watch.TURN)  # until the thread has asked the store
            os.kill(second.process.pid or 0, signal.SIGTERM)
        status, said = second.wait(60)
    finally:
        first.process.kill()
    if is_stopped:
        assert status == 143 and "ended by SIGTERM: the run did not stop in time" in said, said
    else:
        cause = (tmp_path / "output1" / "failure").read_text()
        assert status == 1 and cause.startswith("no progress for 4 s: rank 0 on host algo-1"), said
        assert "rank 0 on host algo-1 does not answer, rank 1 on host algo-2 was in backw" in cause


HOLDS_THE_LOCK = """
import ctypes
from smlightning.cluster import watch

watch.SLOW_FACTOR = 4

def before_step(model, i):
    if RANK == 1 and i == 10:
        time.sleep(2.5)  # until the thread has set the timer
        ctypes.PyDLL(None).sleep(600)

with dist.session():
    fit(hang_seconds=6.0)
"""


@pytest.mark.long
def test_native_code_that_holds_the_interpreters_lock_is_ended(tmp_path: Path) -> None:
    statuses, said = forked.wait_for_all(start(tmp_path, HOLDS_THE_LOCK), 90)
    assert statuses == (1, 1), said
    assert "no progress for 6 s: rank 1 on host algo-2 does not answer" in said[0]
    assert "Timeout (" in said[1] and "in before_step" in said[1]
