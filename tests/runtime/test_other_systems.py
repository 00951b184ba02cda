"""One process trains, resumes and preflights without what Windows and macOS lack.

`other_system.py` removes it, or spawns loader workers as they do. It is no Windows: CI runs one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import checkout

pytestmark = pytest.mark.long
PROGRAM = checkout.TEMPLATE / "tests" / "other_system.py"


def run(system: str, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), system, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "cp1252:strict"},
        capture_output=True,
        encoding="cp1252",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(("system", "workers"), [("win32", "0"), ("darwin", "0"), ("linux", "1")])
def test_a_run_trains_and_resumes(system: str, workers: str, words: str) -> None:
    """The resumed run removes old checkpoints, of which one was mapped into memory."""
    options = ["--dataset", words, "--batch_size", "16", "--log_every", "5", "--epochs", "2"]
    options += ["--checkpoint_steps", "2", "--num_workers", workers]
    run(system, "train", *options, "--max_steps", "6")
    (half,) = Path("outputs/checkpoints").glob("*step000006*.ckpt")
    printed = run(system, "train", *options, "--max_steps", "16", "--resume", str(half))
    assert re.search(r"resume: from .*, step 6 of", printed)
    assert float(printed.split()[-1]) > 0.5
    assert not half.exists()


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_preflight_passes(system: str) -> None:
    assert "preflight passed" in run(system, "preflight", "--offline")
