"""A run of seconds, on which the contract tries your data.py and model.py: rewrite it with them."""

import csv
import random
from pathlib import Path
from typing import Any

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def documents(count: int, seed: int = 0) -> list[str]:
    """Sentences of a few words: easy to learn."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) + "." for _ in range(count)]


def options(folder: Path) -> dict[str, Any]:
    """Write data into ``folder``; the options of a run: two epochs of six batches or more."""
    path = folder / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "other_text", "prompt"])
        rows.writerows(zip(documents(90), documents(90, 1), documents(90, 2), strict=True))
    sizes = {"width": 16, "layers": 2, "heads": 2, "dropout": 0.1, "max_length": 32}
    return {"dataset": str(path), "epochs": 2, "batch_size": 12, "log_every": 2, **sizes}


def changed(name: str, folder: Path) -> dict[str, Any]:
    """Another value of an option, where the contract cannot choose one: of every text.

    Empty: the contract takes the other boolean, another choice, a larger or smaller number.
    """
    if name == "dataset":
        copy = folder / "other.csv"
        content = (folder / "texts.csv").read_text(encoding="utf-8").replace("alpha", "omega")
        copy.write_text(content, encoding="utf-8")
        return {name: str(copy)}
    if name == "text_column":
        return {name: "other_text"}
    values = {"prompt_column": "prompt", "width": 24, "data_dir": "elsewhere"}
    return {name: values[name]} if name in values else {}


ELSEWHERE = {
    "num_workers": "changes who makes the same batches: tests/example/test_data.py",
    "gradient_checkpointing": "changes when the same numbers are computed",
    "model_name": "tests/example/test_model.py fine-tunes Hugging Face checkpoints",
    "lora_rank": "of a Hugging Face checkpoint: tests/example/test_model.py",
    "merge": "of a Hugging Face checkpoint: tests/example/test_model.py",
    "compile": "changes how fast the same numbers are computed",
}
"""Options that the contract does not try: a run of one rank shows no effect of them."""
