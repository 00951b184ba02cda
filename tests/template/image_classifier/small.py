"""A run of seconds: noisy 8 × 8 images of bars and crosses; one epoch is too short to settle
BatchNorm.
"""

from pathlib import Path
from typing import Any

import numpy as np


def options(folder: Path) -> dict[str, Any]:
    write(folder / "images", seed=0)
    return {"dataset": str(folder / "images"), "epochs": 2, "batch_size": 16, "log_every": 2}


def changed(name: str, folder: Path) -> dict[str, Any]:
    if name != "dataset":
        return {}
    write(folder / "others", seed=1)
    return {"dataset": str(folder / "others")}


def write(folder: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    row, column = np.indices((8, 8))
    shapes = np.stack([row % 4 == 1, column % 4 == 1, (row == column) | (row + column == 7)])
    labels = np.arange(300) % 3
    pixels = 160 * shapes[labels] + draw.uniform(0, 90, size=(300, 8, 8))
    folder.mkdir(exist_ok=True)
    np.save(folder / "images.npy", pixels.astype(np.uint8))
    np.save(folder / "labels.npy", labels)


ELSEWHERE: dict[str, str] = {}
