"""A run of seconds on a folder of small images, which the contract tests train."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def options(folder: Path) -> dict[str, Any]:
    """Write bars and crosses into ``folder``; two epochs of six batches or more."""
    write(folder / "images", seed=0)
    run = {"epochs": 2, "batch_size": 12, "log_every": 2}
    return {"dataset": str(folder / "images"), "image_size": 16, **run}


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    if name == "dataset":
        write(folder / "others", seed=1)
        return {name: str(folder / "others")}
    return {name: "elsewhere"} if name == "data_dir" else {}


def write(folder: Path, seed: int) -> None:
    """A folder for each class, with 50 noisy images of 16 × 16."""
    rng = np.random.default_rng(seed)
    row, column = np.indices((16, 16))
    shapes = {"bars": row % 4 == 1, "stripes": column % 4 == 1, "cross": abs(row - column) < 2}
    for name, shape in shapes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(50):
            pixels = 160 * shape + rng.uniform(0, 90, size=shape.shape)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")


ELSEWHERE = {
    "num_workers": "changes who makes the same batches",
    "model_name": "a Hugging Face checkpoint",
}
"""Options that the contract does not try."""
