"""A small data set and a small Hugging Face checkpoint, for the example's tests."""

import csv
from pathlib import Path

import pytest


def pytest_collectstart() -> None:
    """Not while this is imported: a process that shares tests out to others collects none."""
    import lightning_first  # noqa: F401


@pytest.fixture
def words(rows: list[tuple[str, str]], tmp_path: Path) -> str:
    """Path of a csv file of ``rows``."""
    path = tmp_path / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)
