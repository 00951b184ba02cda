"""A run of seconds: a text of a few words in random order, of which more is learned in every
epoch.
"""

import random
from pathlib import Path
from typing import Any

WORDS = "to be or not that is the question whether nobler in mind suffer".split()  # noqa: SIM905


def options(folder: Path) -> dict[str, Any]:
    write(folder / "text.txt", seed=0)
    return {"dataset": str(folder / "text.txt"), "epochs": 2, "batch_size": 16, "log_every": 2}


def changed(name: str, folder: Path) -> dict[str, Any]:
    if name != "dataset":
        return {}
    write(folder / "other.txt", seed=1)
    return {"dataset": str(folder / "other.txt")}


def write(path: Path, seed: int) -> None:
    path.write_text(" ".join(random.Random(seed).choices(WORDS, k=2000)))


ELSEWHERE: dict[str, str] = {}
