"""A run of seconds: a BERT of two layers with random weights, fine-tuned on words."""

import csv
import random
from pathlib import Path
from typing import Any

from smlightning_sagemaker.testing.checkpoints import write_bert

ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}


def options(folder: Path) -> dict[str, Any]:
    """Write data and checkpoint into ``folder``; two epochs of six batches or more."""
    draw = random.Random(0)
    path = folder / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "other_text", "other_label"])
        for name, alphabet in ALPHABETS.items():
            for _ in range(45):
                one, other = (
                    "".join(draw.choices(alphabet, k=draw.randint(1, 12))) for _ in range(2)
                )
                rows.writerow([one, name, other, len(other) % 2])
    bert = write_bert(folder / "bert", "".join(ALPHABETS.values()))
    run = {"epochs": 2, "batch_size": 12, "lr": 0.01, "log_every": 2}
    return {"dataset": str(path), "model_name": bert, "max_length": 8, **run}


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one."""
    if name == "dataset":
        copy = folder / "other.csv"
        content = (folder / "words.csv").read_text(encoding="utf-8")
        copy.write_text(content.replace("α", "β"), encoding="utf-8")
        return {name: str(copy)}
    values = {"text_column": "other_text", "label_column": "other_label", "data_dir": "elsewhere"}
    return {name: values[name]} if name in values else {}


ELSEWHERE = {
    "num_workers": "changes who makes the same batches",
    "gradient_checkpointing": "changes when the same numbers are computed",
    "model_name": "the small run's is a checkpoint already",
    "lr_scaling": "acts on several ranks",
    "compile": "changes how fast the same numbers are computed",
}
"""Options that the contract does not try."""
