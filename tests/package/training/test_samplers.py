"""Samplers of the owner's are divided among the ranks as plain Lightning divides them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rank_training import ROWS, ranks, train_here, train_plainly

SAMPLERS = ["of_subset", "of_weights", "of_batches", "shuffled"]
Batches = list[list[int]]


def rows_by_rank(body: Any, folder: Path, world_size: int, **options: Any) -> list[Batches]:
    return [record["rows"] for record in ranks(body, folder, world_size, **options)]


def counted(ranks_batches: list[Batches]) -> Counter[int]:
    """How often each row came on all ranks together."""
    return Counter(row for rank in ranks_batches for batch in rank for row in batch)


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["of_subset", "of_weights"])
def test_a_sampler_with_its_own_generator_gives_what_it_gives_in_plain_lightning(
    kind: str, world_size: int, tmp_path: Path
) -> None:
    """In every step of every rank: nothing but the sampler's generator decides."""
    options = {"kind": kind, "own": True}
    plain = rows_by_rank(train_plainly, tmp_path / "plain", world_size, **options)
    assert rows_by_rank(train_here, tmp_path / "here", world_size, **options) == plain


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_ranks_divide_one_order(kind: str, world_size: int, tmp_path: Path) -> None:
    """Without one, samplers draw from the process's generators: the ranks draw one order."""
    here = rows_by_rank(train_here, tmp_path, world_size, kind=kind)
    epochs = []
    for epoch in (0, 1):
        half = len(here[0]) // 2
        epochs.append(counted([rank[epoch * half : (epoch + 1) * half] for rank in here]))
    if kind == "of_weights":
        assert [epoch.total() for epoch in epochs] == [24, 24]
        assert epochs[0] != epochs[1], "another draw in each epoch"
        return
    expected = range(0, ROWS, 2) if kind == "of_subset" else range(ROWS)
    assert all(epoch == Counter(expected) for epoch in epochs), "each row once on one rank"
    assert here[0][: len(here[0]) // 2] != here[0][len(here[0]) // 2 :], "another order"


def test_a_weighted_sampler_gives_ranks_parts_of_one_draw(tmp_path: Path) -> None:
    """The draw of 24 rows that one rank alone makes is what two ranks share."""
    (alone,) = rows_by_rank(train_here, tmp_path / "one", 1, kind="of_weights")
    two = rows_by_rank(train_here, tmp_path / "two", 2, kind="of_weights")
    half = len(alone) // 2
    assert counted([alone[:half]]) == counted([rank[: len(rank) // 2] for rank in two])
