"""The tables of loaders in docs/data.md are what runs show that are stopped and resumed."""

from pathlib import Path

import pytest

from checkout import PROJECT
from loader_runs import (
    LIBRARIES,
    LOADERS,
    MOMENTS,
    PLAIN_WORKERS,
    on_other_ranks,
    on_same_ranks,
    on_two_ranks,
)
from small_training import Fit


@pytest.mark.long
def test_the_table_of_loaders_is_right(fit: Fit, tmp_path: Path) -> None:
    heads = ["stopped", *MOMENTS, *(f"{moment}, other ranks" for moment in [*MOMENTS][:2])]
    lines = [heads, ["---"] * len(heads)]
    others = on_other_ranks(tmp_path / "ranks")
    for name in LOADERS:
        lines.append([name, *on_same_ranks(name, fit), *(cells[name] for cells in others)])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    page = (PROJECT / "docs/data.md").read_text(encoding="utf-8")
    assert table in page, f"docs/data.md has another table:\n{table}"


def assert_row_of_two_ranks(name: str, tmp_path: Path) -> None:
    row = f"| {name} | {' | '.join(on_two_ranks(name, tmp_path / 'ranks'))} |\n"
    page = (PROJECT / "docs/data.md").read_text(encoding="utf-8")
    assert row in page, f"docs/data.md has another row:\n{row}"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in LOADERS if name != PLAIN_WORKERS])
def test_a_row_of_two_ranks_with_workers_is_right(name: str, tmp_path: Path) -> None:
    assert_row_of_two_ranks(name, tmp_path)


@pytest.mark.loaders
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_row_of_a_library_is_right(name: str, tmp_path: Path) -> None:
    assert_row_of_two_ranks(name, tmp_path)
