"""What a step and a row draw: numbers of their own, whatever ranks and workers."""

from pathlib import Path
from typing import Any

import pytest

from rank_training import ROWS, ranks, train_here

SAMPLERS = ["of_subset", "of_weights", "of_batches", "shuffled"]
Batches = list[list[int]]


def rows_by_rank(body: Any, folder: Path, world_size: int, **options: Any) -> list[Batches]:
    return [record["rows"] for record in ranks(body, folder, world_size, **options)]


def test_a_step_draws_its_own_numbers_on_each_rank(tmp_path: Path) -> None:
    """The ranks share the order, not what a step draws from any generator."""
    for workers in (0, 1):
        folder = tmp_path / str(workers)
        first, second = ranks(train_here, folder, 2, kind="shuffled", workers=workers)
        assert not set(first["in_step"]) & set(second["in_step"])


@pytest.mark.parametrize(
    "kind", ["shuffled", pytest.param("global_batches", marks=pytest.mark.long)]
)
def test_a_rows_draws_are_its_own_whatever_the_ranks_and_workers(kind: str, tmp_path: Path) -> None:
    """On 1, 2 and 3 ranks, with 0 and 2 workers, persistent or not."""
    tables = []
    for number, (world_size, workers, persistent) in enumerate(
        [(1, 0, False), (1, 2, True), (2, 2, False), (2, 1, True), (3, 0, False)]
    ):
        records = ranks(
            train_here, tmp_path / str(number), world_size,
            kind=kind, workers=workers, persistent=persistent,
        )  # fmt: skip
        tables.append(draws_by_epoch_and_row(records))
    assert len(tables[0]) == 2 * ROWS
    assert len(set(map(tuple, tables[0].values()))) == 2 * ROWS, "of each epoch and row its own"
    assert all(table == tables[0] for table in tables)


def draws_by_epoch_and_row(records: list[Any]) -> dict[tuple[int, int], list[float]]:
    table = {}
    for record in records:
        half = len(record["rows"]) // 2
        for number, (rows, drawn) in enumerate(zip(record["rows"], record["draws"], strict=True)):
            for row, values in zip(rows, drawn, strict=True):
                table[number // half, row] = values
    return table
