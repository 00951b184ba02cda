"""A run of seconds, on which the contract tries your data.py and model.py: rewrite it with them."""

import csv
import random
from pathlib import Path
from typing import Any

ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}


def options(folder: Path) -> dict[str, Any]:
    """Write data into ``folder``; the options of a run: two epochs of six batches or more."""
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
    run = {"epochs": 2, "batch_size": 12, "lr": 0.01, "log_every": 2}
    return {"dataset": str(path), "max_length": 20, **run}  # bytes: half of it cuts some texts


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one: of every text.

    Empty: the contract takes the other boolean, another choice, a larger or smaller number.
    """
    if name == "dataset":
        copy = folder / "other.csv"
        copy.write_text(
            (folder / "words.csv").read_text(encoding="utf-8").replace("α", "β"), encoding="utf-8"
        )
        return {name: str(copy)}
    values = {"text_column": "other_text", "label_column": "other_label", "data_dir": "elsewhere"}
    return {name: values[name]} if name in values else {}


ELSEWHERE = {
    "num_workers": "changes who makes the same batches: tests/example/test_data.py",
    "gradient_checkpointing": "of a Hugging Face checkpoint: tests/example/test_model.py",
    "model_name": "tests/example/test_model.py fine-tunes a Hugging Face checkpoint",
    "lr_scaling": "acts on several ranks: tests/example/test_model.py",
    "compile": "changes how fast the same numbers are computed",
}
"""Options that the contract does not try: a run of one rank shows no effect of them."""
