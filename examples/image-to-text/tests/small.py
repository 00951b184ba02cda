"""A run of seconds on a folder of small documents, which the contract tests train."""

import json
from pathlib import Path
from typing import Any

from receipts import receipts


def options(folder: Path) -> dict[str, Any]:
    """Write receipts into ``folder``; two epochs of six batches or more."""
    write(folder / "documents", seed=0)
    run = {"epochs": 2, "batch_size": 12, "log_every": 2}
    return {"dataset": str(folder / "documents"), "height": 32, "width": 64, **run}


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    if name == "dataset":
        write(folder / "others", seed=1)
        return {name: str(folder / "others")}
    return {name: "elsewhere"} if name == "data_dir" else {}


def write(folder: Path, seed: int, count: int = 120, copies: int = 1) -> None:
    """Receipts of one field, each some times, and metadata.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metadata.jsonl").open("w", encoding="utf-8") as file:
        for number, row in enumerate(copies * list(receipts(count, seed))):
            row["image"].save(folder / f"{number}.png")
            print(json.dumps({"file_name": f"{number}.png", "total": row["total"]}), file=file)


ELSEWHERE = {
    "num_workers": "changes who makes the same batches",
    "model_name": "a Hugging Face checkpoint",
    "num_receipts": "is for --dataset receipts",
}
"""Options that the contract does not try."""
