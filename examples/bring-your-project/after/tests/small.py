"""A run of seconds on few windows, which the contract tests train."""

from pathlib import Path
from typing import Any

import numpy as np


def options(folder: Path) -> dict[str, Any]:
    """Write windows into ``folder``; two epochs of six batches or more."""
    run = {"epochs": 2, "batch_size": 12, "hidden": [16], "warmup_steps": 4, "log_every": 2}
    return {"dataset": write(folder / "windows.npz", seed=0), **run}


def write(path: Path, seed: int) -> str:
    draw = np.random.default_rng(seed).normal
    arrays = {"normal": draw(size=(120, 128)), "faulty": draw(size=(12, 128))}
    np.savez(path, **{name: array.astype(np.float32) for name, array in arrays.items()})
    return str(path)


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    return {name: write(folder / "others.npz", seed=1)} if name == "dataset" else {}


ELSEWHERE = {
    "num_workers": "changes who makes the same batches",
    "init_from": "a checkpoint of the project before its move",
    "patience": "ends a longer run",
}
"""Options that the contract does not try."""
