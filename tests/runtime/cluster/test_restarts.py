"""torchrun starts all ranks again after one was killed, and each attempt trains."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_failures import TRAINING

from smlightning_sagemaker.testing.environment import of_tests
from smlightning_sagemaker.testing.processes import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix", reason="kills processes"),
]

KILLED = """
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def before_step(model, i):
    if i == 3:
        print(f"attempt {ATTEMPT} rank {RANK} pid {os.getpid()}", flush=True)
    if i == 5 and ATTEMPT < int(sys.argv[1]):
        time.sleep(600)  # until the test kills a rank

with dist.session():
    fit(hang_seconds=600.0)
print(f"attempt {ATTEMPT} rank {RANK} done", flush=True)
"""
SECONDS = 120  # for an attempt, on a busy machine


def restart(folder: Path, times: int) -> str:
    """Kill ranks 1, 0, 1, … by SIGKILL, one of each attempt; returns the log."""
    (folder / "job.py").write_text(TRAINING + KILLED)
    program = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
    program += ["--nproc_per_node", "2", "--max_restarts", str(times), "--monitor_interval", "0.1"]
    program += ["--master_port", str(free_port()), "job.py", str(times)]
    variables = dict(of_tests(os.environ), PYTHONPATH=os.pathsep.join(sys.path))
    log = folder / "log"
    with log.open("w") as file:
        agent = subprocess.Popen(
            program, cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        for attempt in range(times):
            deadline = time.monotonic() + SECONDS
            found: dict[str, str] = {}
            while len(found) < 2:
                assert time.monotonic() < deadline and agent.poll() is None, log.read_text()
                time.sleep(0.1)
                found = dict(re.findall(rf"attempt {attempt} rank (\d) pid (\d+)", log.read_text()))
            os.kill(int(found[str((attempt + 1) % 2)]), signal.SIGKILL)
        assert agent.wait(SECONDS) == 0, log.read_text()
    finally:
        agent.kill()
    return log.read_text()


def test_every_restart_of_torchrun_trains(tmp_path: Path) -> None:
    said = restart(tmp_path, 3)
    assert said.count("attempt 3 rank") == 4, said
