"""Order and random numbers of an epoch, a row and a batch are functions of numbers."""

import inspect
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)

from smlightning.data import rng
from smlightning.data.exact import SETTINGS, ExactBatches, Part, Stream, exact_loader, has_rows


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


def exact(loader: DataLoader, epoch: int = 0, done: int = 0, seed: int = 1, **options: Any) -> Any:
    """The loader, which begins its next iteration there."""
    return exact_loader(loader, seed, start=lambda: (epoch, done), **options)


def batches(loader: DataLoader, *start: int, **options: Any) -> Any:
    torch.rand(3)  # whatever was drawn before
    return list(exact(loader, *start, **options))


def rows_of(loader: DataLoader, *args: Any, **options: Any) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row for batch in batches(loader, *args, **options) for row in batch}


def loader(dataset: Any, size: int = 2, **options: Any) -> DataLoader:
    return DataLoader(dataset, size, collate_fn=list, **options)


def test_random_numbers_of_a_row_depend_only_on_seed_epoch_and_row() -> None:
    table = rows_of(loader(Drawing(), shuffle=True))
    assert rows_of(loader(Drawing(), 3), rank=1) == table
    assert rows_of(loader(Drawing()), seed=2) != table
    assert rows_of(loader(Drawing()), 1) != table
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


class Masking:
    """Keeps a random generator, as a collator that masks words does."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(7)

    def __call__(self, samples: list[Any]) -> list[Any]:
        return [self.generator.random(), samples]


def test_generators_of_a_collate_function_are_seeded_by_batch() -> None:
    first = batches(DataLoader(Drawing(), 2, collate_fn=Masking()))
    assert batches(DataLoader(Drawing(), 2, collate_fn=Masking()), 0, 1) == first[1:]
    assert len({batch[0] for batch in first}) == 4


def test_a_repeated_row_has_other_random_numbers() -> None:
    """With replacement a rare row comes many times: its augmentation differs each time."""
    often = WeightedRandomSampler([1.0] + [1e-9] * 7, 8)
    drawn = [row for batch in batches(loader(Drawing(), sampler=often)) for row in batch]
    assert len(drawn) == 8 and len({row[1] for row in drawn}) == 8


def test_an_order_depends_on_seed_and_epoch_but_not_on_the_rank() -> None:
    def order(*args: Any, **options: Any) -> list[int]:
        return list(rows_of(loader(Drawing(), shuffle=True), *args, **options))

    assert order() == order(rank=1)
    assert order() != order(1) and order() != order(seed=2)
    assert order(0, 3) == order()[6:]


def test_a_loader_that_starts_again_next_to_a_longer_one_gives_another_order() -> None:
    trained = iter([0, 3, 3])  # of the first turn, before Lightning fetches the second and a hook
    given = exact_loader(loader(Drawing(), shuffle=True), 1, start=lambda: (0, next(trained)))
    first, second, in_a_hook = list(given), list(given), list(given)
    assert first != second and second == in_a_hook
    resumed = batches(loader(Drawing(), shuffle=True), 0, 5)
    assert resumed == second[1:], "of four batches, the fifth is the second turn's first"


def test_the_users_loader_and_data_set_are_not_changed() -> None:
    given = loader(Drawing(), num_workers=1)
    before = dict(vars(given))
    made = exact(given)
    assert vars(given) == before
    assert made.dataset is given.dataset and made.sampler is given.sampler
    assert len(made) == 4 and (made.batch_size, made.num_workers) == (2, 1)
    assert not isinstance(made, DataLoader), "Lightning would divide it"


def test_a_model_may_set_attributes_of_the_data_set_and_the_sampler() -> None:
    """As a curriculum does by ``trainer.train_dataloader.dataset`` and ``.sampler``."""
    given = loader(Subset(Drawing(), range(8)), sampler=WeightedRandomSampler([1.0] * 8, 8))
    made = exact(given)
    made.dataset.dataset.name = "another"
    made.sampler.weights = torch.tensor([0.0] * 7 + [1.0])
    assert given.dataset.dataset.name == "another"  # type: ignore[attr-defined]
    assert {row for batch in made for row, *_ in batch} == {7}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_divide_the_order_of_a_sampler(size: int, drop_last: bool, ranks: int) -> None:
    """In turns, as Lightning's DistributedSampler does; the first rows complete the last round."""
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    parts = []
    for rank in range(ranks):
        given = loader(Drawing(), size, sampler=order, drop_last=drop_last)
        made = exact(given, rank=rank, ranks=ranks)
        parts.append([row for batch in made for row, *_ in batch])
        lightnings = DistributedSampler(order, ranks, rank, shuffle=False)
        kept = len(lightnings) // size * size if drop_last else len(lightnings)
        assert parts[-1] == [order[place] for place in lightnings][:kept]
        assert len(made) == -(-kept // size)
    assert len({len(part) for part in parts}) == 1


def test_ranks_divide_the_batches_of_a_batch_sampler_of_ones_own() -> None:
    given = [[0, 1], [2], [3, 4, 5], [6], [7]]
    parts = []
    for rank in range(2):
        made = exact(
            DataLoader(Drawing(), batch_sampler=given, collate_fn=list), rank=rank, ranks=2
        )
        parts.append([[row for row, *_ in batch] for batch in made])
        assert len(made) == 3
    assert parts == [[[0, 1], [3, 4, 5], [7]], [[2], [6], [0, 1]]]


def test_a_sampler_that_divides_is_not_divided_again() -> None:
    sampler = DistributedSampler(Drawing(), 2, 1, shuffle=False)  # type: ignore[arg-type]
    made = exact(loader(Drawing(), sampler=sampler), rank=1, ranks=2)
    assert [row for batch in made for row, *_ in batch] == [1, 3, 5, 7] and not made.divides


def test_epoch_and_generator_of_a_row_outside_a_loader() -> None:
    rng.enter(rng.Moment())
    assert rng.epoch() == 0
    assert rng.generator(3).random() == rng.generator(3).random()
    assert rng.generator(3).random() != rng.generator(4).random()


class OwnOrder(Sampler):
    """An order from a generator of its own, as many public samplers have it."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(7)

    def __iter__(self) -> Iterator[int]:
        yield from self.generator.permutation(8).tolist()

    def __len__(self) -> int:
        return 8


class Counting(OwnOrder):
    """An order of how often it was iterated."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        yield from ((row + self.times) % 8 for row in range(8))


@pytest.mark.parametrize("sampler", [OwnOrder, Counting])
@pytest.mark.parametrize("start", [(3,), (3, 2)])
def test_a_sampler_that_remembers_epochs_gives_the_same_order_after_a_resume(
    sampler: Any, start: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    place = [0, 0]
    whole: Any = exact_loader(loader(Drawing(), sampler=sampler()), 1, start=lambda: tuple(place))  # type: ignore[arg-type,return-value]
    epochs = []
    for place[0] in range(4):
        epochs.append(list(whole))
    trained = whole.batches.checksum(2)
    assert batches(loader(Drawing(), sampler=sampler()), *start) == epochs[3][sum(start[1:]) :]
    again = exact(loader(Drawing(), sampler=sampler()), 3, 2, expected=(2, trained))
    assert list(again) == epochs[3][2:] and not capsys.readouterr().out
    other = exact(loader(Drawing(), sampler=sampler()), 3, 2, expected=(2, trained + 1))
    assert list(other) and f"inexact: {sampler.__name__}" in capsys.readouterr().out


class OwnNoise(Drawing):
    """Keeps generators, one of them in a transformation, and knows the epoch."""

    def __init__(self) -> None:
        self.noise = np.random.default_rng()
        self.transform = SimpleNamespace(parts=[random.Random()])
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return row, self.noise.random(), self.transform.parts[0].random(), self.epoch


def test_generators_of_the_data_set_and_its_epoch_are_set() -> None:
    table = rows_of(loader(OwnNoise(), shuffle=True), 2)
    assert rows_of(loader(OwnNoise(), 3), 2, rank=1) == table
    assert len({row[1] for row in table.values()}) == 8
    assert {row[3] for row in table.values()} == {2}
    assert rows_of(loader(OwnNoise()), 1) != table


class OwnIterator(DataLoader):
    def _get_iterator(self) -> Any:
        return super()._get_iterator()


def test_a_loader_with_an_iterator_of_its_own_is_a_stream() -> None:
    assert has_rows(DataLoader(Drawing()))
    assert not has_rows(OwnIterator(Drawing()))


class Stateful:
    """Three batches, by torchdata's contract."""

    given = 0

    def __iter__(self) -> Iterator[int]:
        while self.given < 3:
            self.given += 1
            yield self.given
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def test_a_stream_that_starts_again_next_to_a_longer_one_keeps_the_last_states() -> None:
    """Lightning fetches one batch ahead: the state of the batch before is asked for."""
    stream = Stream(Stateful(), seed=0, rank=0)
    assert [*stream] == [1, 2, 3]
    assert next(iter(stream)) == 1
    assert stream.state(3)["state"] == {"given": 3}  # type: ignore[index]
    assert stream.state(4)["state"] == {"given": 1}  # type: ignore[index]


class RestFirst(Stateful):
    """After a state it gives the rest of that epoch, empty or not, as mosaicml-streaming 0.13."""

    is_loaded = False

    def __iter__(self) -> Iterator[int]:
        self.given, self.is_loaded = (self.given if self.is_loaded else 0), False
        while self.given < 3:
            self.given += 1
            yield self.given

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.is_loaded = True


@pytest.mark.parametrize("kind", [Stateful, RestFirst])
def test_a_stream_goes_on_with_the_next_epoch_after_the_last_state_of_one(kind: type) -> None:
    first = Stream(kind(), seed=0, rank=0)
    assert [*first] == [1, 2, 3]
    assert first.state(0) is None, "training is still in this epoch"
    first.start = lambda: (1, 0)
    ended: Any = first.state(0)
    assert ended["ended"]
    following = Stream(kind(), seed=0, rank=0, start=lambda: (1, 0), resumed=ended)
    assert [*following] == [1, 2, 3] and following.is_whole
    same_epoch = Stream(kind(), 0, 0, start=lambda: (0, 3), resumed={**ended, "samples": 12})
    assert [*same_epoch] == [] and same_epoch.samples == 12, "no warning of fewer samples"


def test_every_setting_of_a_loader_stays() -> None:
    """Each argument of torch's DataLoader is passed on, or chooses rows."""
    rows_chosen = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
    left_out = {"generator", "pin_memory_device", "self"}  # seeded by the run; deprecated
    arguments = set(inspect.signature(DataLoader.__init__).parameters)
    assert arguments - rows_chosen - left_out == set(SETTINGS)
    given = loader(Drawing(), timeout=3, num_workers=1, prefetch_factor=5, drop_last=True)
    made = exact_loader(given, 1)
    for name in SETTINGS:
        assert getattr(made.inner, name) == getattr(given, name), name


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("items", [1, 7, 8, 15, 31])
def test_rows_that_make_the_ranks_equal_are_counted(
    items: int, ranks: int, size: int, drop_last: bool
) -> None:
    """As they come from the loaders of all ranks; with size 0 from batches of a row each."""
    sampler: Any = range(items) if size else [[row] for row in range(items)]
    given: list[int] = []
    for rank in range(ranks):
        part = Part(rank, ranks, size, drop_last)
        for fetch in ExactBatches(sampler, part, items, seed=1, training=False):
            given += fetch.index
    repeated = len(given) - len({*given})
    assert Part(0, ranks, size, drop_last).repeated(items) == repeated
