"""A run of seconds: a linear function of four numbers, far from zero, so that every epoch comes
closer.
"""

from pathlib import Path
from typing import Any

import numpy as np


def options(folder: Path) -> dict[str, Any]:
    write(folder / "rows.csv", seed=0)
    return {"dataset": str(folder / "rows.csv"), "epochs": 2, "batch_size": 16, "log_every": 2}


def changed(name: str, folder: Path) -> dict[str, Any]:
    if name != "dataset":
        return {}
    write(folder / "other.csv", seed=1)
    return {"dataset": str(folder / "other.csv")}


def write(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(200, 4))
    y = x @ [1, 2, 3, 4] + 20 + draw.normal(scale=0.1, size=200)
    np.savetxt(
        path, np.column_stack([x, y]), fmt="%.4f", delimiter=",", header="a,b,c,d,y", comments=""
    )


ELSEWHERE: dict[str, str] = {}
