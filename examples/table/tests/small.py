"""A run of seconds on a small table, which the contract tests train."""

import csv
from pathlib import Path
from typing import Any

from offers import rows


def options(folder: Path) -> dict[str, Any]:
    """Write a csv into ``folder``; two epochs of six batches or more."""
    write(folder / "offers.csv", seed=0)
    run = {"epochs": 2, "batch_size": 16, "hidden": 16, "buckets": 64, "log_every": 1}
    return {"dataset": str(folder / "offers.csv"), **run}


def write(path: Path, seed: int) -> None:
    """Two hundred rows, and columns that options of the contract choose."""
    table = rows(seed, 200)
    table = {**table, "years": table["age"], "name": table["title"], "class": table["kind"]}
    table["cents"] = [str(round(100 * float(price))) for price in table["price"]]
    with path.open("w", newline="", encoding="utf-8") as file:
        output = csv.writer(file)
        output.writerow(table)
        output.writerows(zip(*table.values(), strict=True))


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    if name == "dataset":
        write(folder / "others.csv", seed=1)
        return {name: str(folder / "others.csv")}
    values = {"target": "cents", "numbers": "years", "texts": "name"}
    if name == "task":
        return {"task": "classification", "target": "class"}
    return {name: values[name]} if name in values else {}


ELSEWHERE = {"data_dir": "changes where the same rows are kept"}
"""Options that the contract does not try."""
