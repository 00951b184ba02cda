"""Global batches: every sample once, whatever the world size, in an order of (seed, epoch)."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smlightning.data import batches
from smlightning.data.batches import GlobalBatches
from smlightning.errors import UserError
from smlightning.tensors import digest

settings.load_profile("ci")  # a busy machine may take its time


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=200),
    per_rank=st.integers(1, 9),
    world_size=st.integers(1, 4),
    seed=st.one_of(st.none(), st.integers(0, 3)),
    epoch=st.integers(0, 3),
)
def test_every_sample_comes_once_on_any_number_of_ranks(
    lengths: list[int], per_rank: int, world_size: int, seed: int | None, epoch: int
) -> None:
    size = per_rank * world_size
    ranks = [GlobalBatches(lengths, size, rank, world_size, seed) for rank in range(world_size)]
    alone = GlobalBatches(lengths, size, seed=seed)
    for order in (*ranks, alone):
        order.start = lambda: (epoch, 0)
    assert {len(order) for order in ranks} == {len(alone)}
    seen: list[int] = []
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert len({len(part.rows) for part in parts}) == 1, "ranks would wait for each other"
        together = [row for part in parts for row in part.rows[: part.real]]
        assert sorted(together) == sorted(whole.rows[: whole.real])
        assert len(parts[0].rows) >= min(2, per_rank), "a rank with a single row"
        # DDP's mean over ranks of (sum of losses × scale) is the mean over the global batch.
        scales = {round(part.scale * len(together) / world_size, 9) for part in parts}
        assert scales == {1.0}
        seen += together
    assert sorted(seen) == list(range(len(lengths)))


def rows_of(seed: int, epoch: int) -> list[list[int]]:
    order = GlobalBatches(range(1, 101), 8, seed=seed)
    order.start = lambda: (epoch, 0)
    return [part.rows.tolist() for part in order]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    assert rows_of(0, 1) == rows_of(0, 1)
    assert rows_of(0, 1) != rows_of(0, 2)
    assert rows_of(0, 1) != rows_of(1, 1)


def test_batches_are_grouped_by_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 4096)
    order = GlobalBatches(lengths, 32, seed=0)
    padded = sum(len(part.rows) * lengths[part.rows].max() for part in order)
    assert padded < 1.1 * lengths.sum()  # in random order it is about 1.9


def test_evaluation_begins_with_the_longest() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 100)
    rows = np.concatenate([part.rows for part in GlobalBatches(lengths, 10)])
    assert (np.diff(lengths[rows]) <= 0).all()


def test_every_sample_needs_a_length() -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(7))
    with pytest.raises(UserError, match="3 lengths for 7 samples"):
        batches.loader(dataset, [1] * 3, 2)


@dataclass
class Batch:
    x: Any
    name: str = ""


def test_a_digest_depends_on_all_content_of_a_batch() -> None:
    x = torch.arange(6, dtype=torch.float32)
    different = [
        x,
        x + 1,
        x.double(),
        x.reshape(2, 3),
        x.bfloat16(),
        x > 2,
        x[:0],
        [x, x],
        {"x": x, "y": 1},
        (x, "text"),
        Batch(x, "name"),
        Batch([x]),
        UserDict(x=(x, True)),
        [["one", "other"]],
        torch.eye(3).to_sparse(),
        None,
    ]
    found = [digest(batch) for batch in different]
    assert len(set(found)) == len(found) and all(0 <= number < 2**48 for number in found)
    assert digest(Batch([x], "name")) == digest(Batch((x.clone(),), "name"))
    assert digest(x.reshape(2, 3).T) == digest(x.reshape(2, 3).T.contiguous())
    itself: dict[str, Any] = {"x": x}
    itself["itself"] = itself
    digest(itself)
