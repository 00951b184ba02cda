"""Small data and a small Hugging Face checkpoint for the tests of the example.

Delete this folder when you replace data.py or model.py (docs/model.md).
"""

import csv
import random
from pathlib import Path

import pytest

from small import ALPHABETS


@pytest.fixture(scope="session")
def rows() -> list[tuple[str, str]]:
    """240 words in three alphabets, of 1 to 12 letters, and their alphabets: easy to learn."""
    draw = random.Random(0)
    return [
        ("".join(draw.choices(alphabet, k=draw.randint(1, 12))), name)
        for name, alphabet in ALPHABETS.items()
        for _ in range(80)
    ]


@pytest.fixture
def words(rows: list[tuple[str, str]], tmp_path: Path) -> str:
    """Path of a csv file of ``rows``."""
    path = tmp_path / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


@pytest.fixture(scope="session")
def tiny_bert(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a BERT of two layers, with random weights and a token for every letter."""
    from smlightning_sagemaker.testing.checkpoints import write_bert

    letters = "".join(text for text, _ in rows)
    return write_bert(tmp_path_factory.mktemp("tiny-bert"), letters)
