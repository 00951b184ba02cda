"""A run of seconds on a folder with a small table, which the contract tests train."""

import csv
import random
from pathlib import Path
from typing import Any

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def options(folder: Path) -> dict[str, Any]:
    """Write texts into ``folder``; two epochs of six batches or more."""
    write(folder / "texts", seed=0)
    sizes = {"width": 16, "layers": 2, "max_length": 32}
    return {
        "dataset": str(folder / "texts"),
        "epochs": 2,
        "batch_size": 12,
        "log_every": 2,
        **sizes,
    }


def write(folder: Path, seed: int) -> None:
    """Sentences of a few words, easy to learn, and others next to them."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "other_text"])
        for _ in range(120):
            rows.writerow([" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(2)])


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    if name == "dataset":
        write(folder / "others", seed=1)
        return {name: str(folder / "others")}
    values = {"text_column": "other_text", "width": 24, "data_dir": "elsewhere"}
    return {name: values[name]} if name in values else {}


ELSEWHERE = {
    "num_workers": "changes who makes the same batches",
    "model_name": "a Hugging Face checkpoint",
    "compile": "changes how fast the same numbers are computed",
    "gradient_checkpointing": "changes when the same numbers are computed",
}
"""Options that the contract does not try."""
