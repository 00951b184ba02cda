"""Stops, kills, damage and other numbers of ranks, in small: benchmarks/stress.py runs the same
trials in large, and CI those with full disks, hangs, lost hosts and metrics, too.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smlightning.testing.environment import outside_a_job

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
ROOT = Path(__file__).resolve().parents[2]

# Each group in a process of its own: it forks ranks, which a process that has run other tests
# should not. With this seed a rank of four is killed, and two ranks become four.
TRIALS = [
    ["kills:1", "stops:1", "--seed", "7"],
    ["ranks:1", "damage:5", "--seed", "7"],
]
# What tests in this process, or the shell, may have left, and a run of its own should not see:
# with PL_GLOBAL_SEED a strategy of several ranks seeds again.
LEFT_BY_OTHERS = ("PL_GLOBAL_SEED", "PYTHONPATH", "SMLIGHTNING_PROJECT")


@pytest.mark.timeout(800)
@pytest.mark.parametrize("trials", TRIALS, ids=" ".join)
def test_nothing_is_lost(trials: list[str]) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "stress.py"),
        *trials,
    ]
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
    said = run.stdout
    assert run.returncode == 0, said[-6000:]
    lines = said.splitlines()
    assert [line for line in lines if " ok " in line], "no trial was made"
    assert not [line for line in lines if "FAILED" in line], said
