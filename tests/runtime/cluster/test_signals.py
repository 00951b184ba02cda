"""A signal stops a run in order; that Lightning has what is replaced is tested elsewhere."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small

import forked
from smlightning.checkpoints import files as checkpoint_files

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


RUN = """
import sys, train
from smlightning import entry
from smlightning.cluster import watch
watch.GRACE = 30.0  # a slow disk's files take seconds
sys.exit(entry.main(train.train, train.Options, None))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_ends_with_status_143(tmp_path: Path, number: signal.Signals) -> None:
    options = {**small.options(tmp_path), "epochs": 300, "log_every": 5}
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    run = forked.start(RUN, Path("log").absolute(), os.environ, *pairs)
    while run.process.is_alive() and not (run.log.exists() and "step=5 " in run.log.read_text()):
        time.sleep(0.1)
    os.kill(run.process.pid or 0, number)
    status, said_all = run.wait(60)
    assert status == 143, said_all
    last = said_all.splitlines()[-1]
    said = re.fullmatch(
        rf"stopped by {number.name} at step (\d+) of \d+; start the same command .* to resume", last
    )
    assert said, last
    path = checkpoint_files.newest_path(Path("outputs/checkpoints"))
    assert path and f"-step{int(said[1]):06d}-" in path.name


def python(code: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([sys.executable, "-c", code], **pipes)  # type: ignore[call-overload]
    assert run.stdout.readline() == "ready\n"
    return run


SAME = 3.0  # for watch.SAME: a busy machine's process may pause for a second


def test_a_second_signal_ends_at_once() -> None:
    busy = (
        "from smlightning.cluster import signals, watch; import time; "
        f"watch.SAME = {SAME}; signals.install(); signals.defer('go on'); "
        "print('ready', flush=True); time.sleep(60)"
    )
    run = python(busy)
    run.send_signal(signal.SIGINT)
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)  # the same: a terminal and torchrun's agent pass Ctrl-C on
    time.sleep(2 * SAME)  # counted from when a busy machine notices the first one
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait(10) == 143
    assert run.communicate()[1] == "ended by a second signal; go on\n"


def test_native_code_that_does_not_return_is_ended() -> None:
    """Python's handler never runs here: the main thread waits in C, as when the ranks connect."""
    code = (
        "from smlightning.cluster import signals; import ctypes, sys, threading; "
        "signals.install(); c = ctypes.CDLL(None); lock = ctypes.create_string_buffer(128); "
        "c.pthread_mutex_init(lock, None); c.pthread_mutex_lock(lock); "
        "gate = threading.Lock(); gate.acquire(); "
        "say = lambda: (gate.acquire(), print('ready', flush=True)); "
        "threading.Thread(target=say, daemon=True).start(); "
        # From here on this thread lets another run only in C, so "ready" comes when it waits there.
        "sys.setswitchinterval(1000); gate.release(); c.pthread_mutex_lock(lock)"
    )
    run = python(code)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 143
    assert run.communicate()[1] == (
        "ended by SIGTERM: the run did not stop in time; "
        "nothing was trained yet: start the same command again\n"
    )


WORKER = """
import multiprocessing, os, signal
from torch.utils.data import DataLoader
from smlightning.cluster import signals
loader = DataLoader(
    range(4), num_workers=1, multiprocessing_context={kind!r}, persistent_workers=True,
    worker_init_fn=signals.ignore_signals_in_workers,
)
batches = iter(loader)
next(batches)
[worker] = multiprocessing.active_children()
stranger = os.fork()
if not stranger:
    os.kill(worker.pid, signal.SIGTERM)
    os._exit(0)
os.waitpid(stranger, 0)
worker.join(1)
print("after a stranger's signal", worker.exitcode)
worker.terminate()
worker.join(10)
print("after its parent's signal", worker.exitcode, flush=True)
worker.kill()
worker.join()
"""


@pytest.mark.parametrize("kind", ["fork", "forkserver"])
def test_only_the_parent_of_a_loaders_worker_ends_it(kind: str, tmp_path: Path) -> None:
    status, said = forked.start(WORKER.format(kind=kind), tmp_path / "log", os.environ).wait(60)
    assert said.splitlines() == ["after a stranger's signal None", "after its parent's signal 0"]
    assert status == 0
