"""The table of loaders in docs/data.md is what runs show that are stopped and resumed."""

from pathlib import Path

import pytest

from checkout import PROJECT
from loader_runs import LOADERS, MOMENTS, on_other_ranks, on_same_ranks
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
