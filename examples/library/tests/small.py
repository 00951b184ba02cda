"""A run of seconds on a csv of small molecules, which the contract tests train."""

import itertools
from pathlib import Path
from typing import Any


def options(folder: Path) -> dict[str, Any]:
    """Write a csv into ``folder``; two epochs of six batches or more."""
    write(folder / "molecules.csv", "CNO")
    run = {"epochs": 2, "batch_size": 8, "hidden": 16, "depth": 2, "log_every": 1}
    return {"dataset": str(folder / "molecules.csv"), **run}


def write(path: Path, atoms: str) -> None:
    """Chains of five atoms: their lengths of carbon, and another number."""
    lines = ["smiles,target,other,again"]
    for chain in itertools.product(atoms, repeat=4):
        smiles = "".join(chain) + "C"
        lines.append(f"{smiles},{smiles.count('C')},{smiles.count('N')},C{smiles}")
    path.write_text("\n".join(lines), encoding="utf-8")


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    if name == "dataset":
        write(folder / "others.csv", "CNS")
        return {name: str(folder / "others.csv")}
    values = {"smiles_column": "again", "target_column": "other"}
    return {name: values[name]} if name in values else {}


ELSEWHERE: dict[str, str] = {}
"""Options that the contract does not try."""
