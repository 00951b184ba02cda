"""A kill, and damaged checkpoints, by benchmarks/stress.py. CI makes its other trials as well, with
stops, other numbers of ranks, full disks, hangs, lost hosts and metrics.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smlightning.testing.environment import outside_a_job

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
ROOT = Path(__file__).resolve().parents[2]

TRIALS = ["kills:1", "damage:3", "--seed", "7"]  # of this seed a rank of four is killed
# What tests in this process, or the shell, may have left, and a run of its own should not see:
# with PL_GLOBAL_SEED a strategy of several ranks seeds again.
LEFT_BY_OTHERS = ("PL_GLOBAL_SEED", "PYTHONPATH", "SMLIGHTNING_PROJECT")


@pytest.mark.timeout(800)
def test_nothing_is_lost() -> None:
    """In a process of its own: it forks ranks, which one that has run other tests should not."""
    command = [sys.executable, str(ROOT / "benchmarks" / "stress.py"), *TRIALS]
    environment = outside_a_job(os.environ)
    for name in LEFT_BY_OTHERS:
        environment.pop(name, None)
    run = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=790,
    )
    output = run.stdout
    assert run.returncode == 0, output[-6000:]
    lines = output.splitlines()
    assert [line for line in lines if " ok " in line], "no trial was made"
    assert not [line for line in lines if "FAILED" in line], output
