"""Ranks divide the order of a sampler; each row has its own random numbers."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from rank_training import ROWS, Positional, of_weights, ranks, train_here

SAMPLERS = ["of_subset", "of_weights", "of_batches", "shuffled"]
Batches = list[list[int]]


def rows_by_rank(body: Any, folder: Path, world_size: int, **options: Any) -> list[Batches]:
    return [record["rows"] for record in ranks(body, folder, world_size, **options)]


def flat(batches: Batches) -> list[int]:
    return [row for batch in batches for row in batch]


def counted(ranks_batches: list[Batches]) -> Counter[int]:
    """Counts of each row over all ranks."""
    return Counter(row for rank in ranks_batches for batch in rank for row in batch)


def test_the_order_of_a_sampler_with_its_own_generator_is_divided(tmp_path: Path) -> None:
    """Lightning would shuffle it once more (pytorch-lightning#21131)."""
    one, other = rows_by_rank(train_here, tmp_path, 2, kind="of_weights", own=True)
    trained = [
        row for batches in zip(one, other, strict=True) for row in zip(*batches, strict=True)
    ]
    expected = of_weights(torch.Generator().manual_seed(3))["sampler"]
    epochs = [[*expected], [*expected]]
    assert [row for pair in trained for row in pair] == epochs[0] + epochs[1]


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_ranks_divide_one_order(kind: str, world_size: int, tmp_path: Path) -> None:
    """Without one, samplers use the process's generators, which give all ranks one order."""
    here = rows_by_rank(train_here, tmp_path, world_size, kind=kind)
    epochs = []
    for epoch in (0, 1):
        half = len(here[0]) // 2
        epochs.append(counted([rank[epoch * half : (epoch + 1) * half] for rank in here]))
    if kind == "of_weights":
        assert [epoch.total() for epoch in epochs] == [24, 24]
        assert epochs[0] != epochs[1], "another sample in each epoch"
        return
    expected = range(0, ROWS, 2) if kind == "of_subset" else range(ROWS)
    assert all(epoch == Counter(expected) for epoch in epochs), "each row once on one rank"
    assert here[0][: len(here[0]) // 2] != here[0][len(here[0]) // 2 :], "another order"


@pytest.mark.parametrize("kind", ["shuffle", "sampler"])
def test_arguments_of_a_loader_may_be_positions(kind: str, tmp_path: Path) -> None:
    """Lightning cannot divide such a loader that a hook makes (MisconfigurationException)."""
    one, other = rows_by_rank(train_here, tmp_path, 2, kind=kind, data=Positional)
    half = len(one) // 2
    for epoch in (slice(half), slice(half, None)):
        assert counted([one[epoch], other[epoch]]) == Counter(range(ROWS))


def test_a_rows_random_numbers_depend_on_no_rank_or_worker(tmp_path: Path) -> None:
    """On 1, 2 and 3 ranks, with 0 to 2 workers, persistent or not."""
    tables = []
    for number, (world_size, workers, persistent) in enumerate(
        [(1, 0, False), (2, 2, True), (3, 1, False)]
    ):
        records = ranks(
            train_here, tmp_path / str(number), world_size,
            kind="shuffled", workers=workers, persistent=persistent,
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
