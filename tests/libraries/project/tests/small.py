"""The run of seconds that the contract tests train."""

from pathlib import Path
from typing import Any

from names import RUN


def options(folder: Path) -> dict[str, Any]:
    return {"epochs": 2, "batch_size": 8, "log_every": 1, **RUN}


def changed(name: str, folder: Path) -> dict[str, Any]:
    return {}


ELSEWHERE = {"dataset": "made in code"}
