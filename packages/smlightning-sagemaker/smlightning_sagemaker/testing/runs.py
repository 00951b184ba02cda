"""Short runs of a project's train.py, loaders and predict.py, on one rank or several."""

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from smlightning_sagemaker.testing import owner, recording
from smlightning_sagemaker.testing.processes import KILLED, SECONDS, Record, run_ranks


def train(
    folder: Path, options: dict[str, Any], world_size: int = 1, kill_at: int = 0
) -> list[Record]:
    """Train in ``folder``; returns each rank's record (``recording.TrainingRecorder``).

    Args:
        kill_at: the number of batches after which SIGKILL ends every rank, once there is a
            checkpoint of the batch before the last one; 0: never.
    """
    body = functools.partial(recording.train, options=options, kill_at=kill_at)
    return run_ranks(body, folder, world_size, KILLED if kill_at else 0)


def loaders(folder: Path, options: dict[str, Any], world_size: int) -> dict[str, Counter[int]]:
    """Digests of the samples of all ranks in one epoch of `data.Data`, by split.

    If there is an option `batch_size`, it is 1: padding would change the digests.
    """
    body = functools.partial(recording.iterate, options=options)
    ranks = run_ranks(body, folder, world_size)
    return {
        split: sum((Counter(rank[split]) for rank in ranks), Counter())
        for split in ("train", "val")
    }


def sample_answers(folder: Path) -> tuple[str, str]:
    """What `predict.py --sample` prints in the folder of a run, in two processes.

    The second has imported everything itself, and another hash() of each text than any other.
    """
    (record,) = run_ranks(recording.predict, folder, 1)
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1", "PYTHONHASHSEED": "1"}
    ended = subprocess.run(
        [sys.executable, str(owner.load().predict.__file__), *recording.PREDICT],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"predict.py --sample failed\n{ended.stderr}"
    return record["answer"], ended.stdout
