"""Random numbers of an epoch's order, of a row and of a batch are functions of numbers."""

import pickle
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, WeightedRandomSampler

from smlightning.data import rng
from smlightning.data.rng import Start


class Drawing(Dataset):
    name = "drawing"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return row, torch.rand(1).item(), random.random(), float(np.random.rand())


class Gathering(Drawing):
    """Makes a batch in one call, as `datasets` does."""

    def __getitems__(self, rows: list[int]) -> list[Any]:
        noise = random.random()
        return [(row, noise) for row in rows]


def batches(loader: DataLoader, start: Start | None = None, seed: int = 1, rank: int = 0) -> Any:
    exact: Any = rng.exact_loader(loader, lambda: start or Start(), seed, rank, True)
    torch.rand(3)  # whatever was drawn before
    return list(exact)


def rows_of(loader: DataLoader, *args: Any, **options: Any) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row for batch in batches(loader, *args, **options) for row in batch}


def loader(dataset: Any, size: int = 2, **options: Any) -> DataLoader:
    return DataLoader(dataset, size, collate_fn=list, **options)


def test_random_numbers_of_a_row_depend_only_on_seed_epoch_and_row() -> None:
    table = rows_of(loader(Drawing(), shuffle=True))
    assert rows_of(loader(Drawing(), 3), rank=1) == table
    assert rows_of(loader(Drawing()), seed=2) != table
    assert rows_of(loader(Drawing()), Start(1)) != table
    for generator in (1, 2, 3):
        assert len({row[generator] for row in table.values()}) == 8


def test_a_subset_is_seeded_by_row_and_a_data_set_that_gathers_by_batch() -> None:
    table = rows_of(loader(Subset(Drawing(), range(8))))
    assert table == rows_of(loader(Subset(Drawing(), range(8)), 3))
    gathered = rows_of(loader(Gathering()))
    assert gathered == rows_of(loader(Gathering()))
    assert len({row[1] for row in gathered.values()}) == 4


def test_a_collate_function_is_seeded_by_batch() -> None:
    def collate(samples: list[Any]) -> list[Any]:
        return [[sample[0] for sample in samples], random.random()]

    given = DataLoader(Drawing(), 2, collate_fn=collate)
    first = batches(given)
    assert batches(given) == first and len({batch[1] for batch in first}) == 4


def test_a_repeated_row_has_other_random_numbers() -> None:
    """With replacement a rare row comes many times: its augmentation differs each time."""
    often = WeightedRandomSampler([1.0] + [1e-9] * 7, 8)
    drawn = [row for batch in batches(loader(Drawing(), sampler=often)) for row in batch]
    assert len(drawn) == 8 and len({row[1] for row in drawn}) == 8


def test_an_order_depends_on_seed_and_epoch_but_not_on_the_rank() -> None:
    def order(*args: Any, **options: Any) -> list[int]:
        return list(rows_of(loader(Drawing(), shuffle=True), *args, **options))

    assert order() == order(rank=1)
    assert order() != order(Start(1)) and order() != order(seed=2)
    assert order(Start(0, 3)) == order()[6:]


def test_a_loader_that_starts_again_next_to_a_longer_one_gives_another_order() -> None:
    exact: Any = rng.exact_loader(loader(Drawing(), shuffle=True), Start, 1, 0, True)
    first, second = list(exact), list(exact)
    assert first != second
    resumed: Any = rng.exact_loader(
        loader(Drawing(), shuffle=True), lambda: Start(0, 5), 1, 0, True
    )
    assert list(resumed) == second[1:], "of four batches, the fifth is the second turn's first"


def test_the_users_loader_and_data_set_are_not_changed() -> None:
    given = loader(Drawing())
    dataset, sampler = given.dataset, given.batch_sampler
    exact: Any = rng.exact_loader(given, Start, 1, 0, True)
    assert given.dataset is dataset and given.batch_sampler is sampler
    assert exact.dataset.name == "drawing" and len(exact.dataset) == 8
    assert exact.dataset[3][0] == 3, "the user may ask without a loader"
    sent = pickle.loads(pickle.dumps(exact.dataset))  # noqa: S301  as to a worker
    assert sent.name == "drawing"
    assert len(exact) == 4 and exact.batch_sampler.batch_size == 2


def test_epoch_and_generator_of_a_row_outside_a_loader() -> None:
    rng._position = rng.BatchPosition()
    assert rng.epoch() == 0
    assert rng.generator(3).random() == rng.generator(3).random()
    assert rng.generator(3).random() != rng.generator(4).random()
