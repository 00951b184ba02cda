"""Short runs of a project's train.py, loaders and predict.py, on one rank or several."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

from smlightning.testing import recording
from smlightning.testing.processes import KILLED, Record, run_ranks


def train(
    folder: Path, options: dict[str, Any], world_size: int = 1, kill_at: int = 0
) -> list[Record]:
    """Train in ``folder``; each rank's record (``recording.TrainingRecorder``), with its ``log``.

    Args:
        kill_at: the number of batches after which SIGKILL ends every rank, as soon as there is a
            checkpoint of the batch before last; 0: never.
    """
    body = functools.partial(recording.train, options=options, kill_at=kill_at)
    return run_ranks(body, folder, world_size, KILLED if kill_at else 0)


def loaders(
    folder: Path, options: dict[str, Any], world_size: int, seed: int = 0
) -> dict[str, Counter[str]]:
    """Digests of the samples that all ranks together get from `data.Data` in one epoch.

    With an option `batch_size`, batches have a single sample, without padding.

    Args:
        seed: of augmentation.
    """
    body = functools.partial(recording.iterate, options=options, seed=seed)
    ranks = run_ranks(body, folder, world_size)
    return {
        split: sum((Counter(rank[split]) for rank in ranks), Counter())
        for split in ("train", "val")
    }


def sample_answers(folder: Path) -> str:
    """The output of `predict.py --sample` in the folder of a run."""
    (record,) = run_ranks(recording.predict, folder, 1)
    return record["log"]
