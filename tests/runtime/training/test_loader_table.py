"""The table of loaders in docs/data.md is what runs show that are stopped and resumed."""

from functools import partial
from pathlib import Path

import pytest

from checkout import PROJECT
from loader_runs import (
    LOADERS,
    MOMENTS,
    WORKERS_OF_A_STREAM,
    on_other_ranks,
    on_same_ranks,
    train_to_the_end,
)
from small_training import Fit
from smlightning_sagemaker.testing.processes import KILLED, run_ranks


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


@pytest.mark.long
@pytest.mark.parametrize("batch", [4, 12, 20])
def test_a_stream_with_workers_resumes_in_each_epoch_on_two_ranks(
    batch: int, tmp_path: Path
) -> None:
    """`datasets` gives a worker its files by the epoch in which the worker starts."""
    until = partial(train_to_the_end, name=WORKERS_OF_A_STREAM)
    alone, *_ = run_ranks(partial(until, folder="alone"), tmp_path, 2)
    run_ranks(partial(until, folder="killed", crash=("before_batch", batch)), tmp_path, 2, KILLED)
    resumed, *_ = run_ranks(partial(until, folder="killed"), tmp_path, 2)
    assert resumed["weights"] == alone["weights"]
