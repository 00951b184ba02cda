"""What is drawn at random while a batch is fetched: a function of (seed, epoch, row).

The order of an epoch is drawn from numbers that are the same on every rank, so that a sampler
which Lightning divides among the ranks gives all of them one order. What a data set draws from
torch's, numpy's or Python's generator for a row is drawn from (seed, epoch, row): by whatever rank
or loader worker, and in a resumed run as in an uninterrupted one.

A data set that wants a generator of its own, or gathers a batch at once, asks for them:

    def __getitem__(self, share):
        noise = np.stack([draws.generator(row).normal(size=8) for row in share.rows])
"""

import copy
import itertools
import pickle
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from smlightning.data.batches import Share

ORDER, ROW, BATCH, OWN, STREAM = range(5)  # what a number is drawn for
ALIKE = 2  # batches of a run for which streams draw the same on all ranks
MASK = 2**64 - 1
LIBRARIES = ("torch", "torchdata", "pytorch_lightning", "lightning_fabric")


class Place(NamedTuple):
    """Where in a run a batch is fetched.

    Attributes:
        seed: of the run.
        epoch: from 0; of an evaluation always 0, so that each draws the same.
        rank: of this process.
        turn: how often the loader was begun anew in this epoch, beside a longer one.
        batch: number in the epoch, of this rank.
    """

    seed: int = 0
    epoch: int = 0
    rank: int = 0
    turn: int = 0
    batch: int = 0

    @property
    def of_all_ranks(self) -> tuple[int, int, int]:
        return self.seed, self.epoch, self.turn


class Fetch(NamedTuple):
    """What a loader asks its data set for.

    Attributes:
        place: where in the run.
        index: what the sampler gave: a list of rows, or what makes a whole batch.
        again: positions in ``index`` of rows that this rank had before in this epoch.
    """

    place: Place
    index: Any
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class Order:
    """What a loader gave in an epoch so far, to be compared with what it gives now.

    Attributes:
        rows: checksum of the rows of all batches that were trained on.
    """

    rows: int


@dataclass(frozen=True)
class Start:
    """Where a loader begins.

    Attributes:
        epoch: from 0.
        batches: how many of its batches are done.
        order: what they were; None where nothing is known of them.
    """

    epoch: int = 0
    batches: int = 0
    order: Order | None = None


_place = Place()  # of the batch that this process is fetching


def epoch() -> int:
    """The epoch of the batch that is being fetched, also in persistent loader workers."""
    return _place.epoch


def generator(row: int) -> np.random.Generator:
    """A row's own in this epoch: its numbers are a function of (seed, epoch, row)."""
    return np.random.default_rng(mix(OWN, *_place.of_all_ranks, int(row)))


def mix(*numbers: int, before: int = 0) -> int:
    """64 bits that depend on every bit of ``numbers`` (the finalizer of splitmix64, Steele et al.
    2014, after each of them).

    Args:
        before: what numbers before these have given.
    """
    mixed = before
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        mixed ^= mixed >> 31
    return mixed


def seed_generators(number: int) -> None:
    """Seed torch's, Python's and numpy's generators by 64 bits."""
    torch.default_generator.manual_seed(number >> 1)
    random.seed(number & 0xFFFFFFFF)  # a longer number takes longer
    np.random.seed(number >> 32)


def number_of(index: Any) -> int:
    """A number for what a sampler gives: of a row, the row itself."""
    if isinstance(index, int | np.integer):
        return int(index)
    content = _content(index)
    return zlib.crc32(content) << 32 | zlib.adler32(content)


class DrawingDataset(Dataset):
    """A data set whose generators are seeded for each row, and then for the batch.

    Attributes of the data set are this one's, too.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # while it is unpickled, there is none
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, fetch: Any) -> Any:
        """A whole batch of a loader without ``batch_size``; what is no Fetch goes to the data."""
        if not isinstance(fetch, Fetch):
            return self.dataset[fetch]
        _enter(fetch)
        _seed_batch(fetch)
        return self.dataset[fetch.index]

    def __getitems__(self, fetch: Fetch) -> Sequence[Any]:
        """The samples of a batch; ``collate_fn`` then draws from the batch's numbers."""
        _enter(fetch)
        if _gathers(self.dataset):
            _seed_batch(fetch)
            return self.dataset.__getitems__(fetch.index)
        samples = []
        for row, number in zip(fetch.index, _numbers_of_rows(fetch), strict=True):
            seed_generators(number)
            samples.append(self.dataset[row])
        _seed_batch(fetch)
        return samples


def _enter(fetch: Fetch) -> None:
    global _place
    _place = fetch.place


def _seed_batch(fetch: Fetch) -> None:
    seed_generators(mix(BATCH, *fetch.place.of_all_ranks, number_of(fetch.index)))


def _numbers_of_rows(fetch: Fetch) -> Iterator[int]:
    of_all = mix(ROW, *fetch.place.of_all_ranks)
    for position, row in enumerate(fetch.index):
        number = mix(number_of(row), before=of_all)
        if position in fetch.again:
            number = mix(fetch.place.rank, fetch.place.batch, position, before=number)
        yield number


def _gathers(dataset: Any) -> bool:
    """Whether a data set makes the samples of a batch in one call; a Subset only if its data do."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


class IndexStream:
    """What a loader's sampler gives, each batch with its place; in a resumed epoch without those
    that are done.

    Attributes of the sampler are this one's, too.

    Args:
        loader: whose ``batch_sampler`` or ``sampler`` gives the batches.
        start: asked when an epoch's first batch is.
        seed: of the run.
        rank: of this process.
        training: else every iteration draws the same.
    """

    def __init__(
        self,
        loader: DataLoader,
        start: Callable[[], Start],
        seed: int,
        rank: int,
        training: bool,
    ) -> None:
        self.of_rows = loader.batch_sampler is not None
        self.sampler: Any = loader.batch_sampler if self.of_rows else loader.sampler
        self.rows = _length(loader.dataset) if self.of_rows else 0
        self.start = start
        self.seed = seed
        self.rank = rank
        self.training = training
        self.epoch = -1  # of the latest iteration
        self.turn = 0  # how often it was begun anew in this epoch
        self.checksums: dict[int, int] = {}  # of the rows of so many batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Fetch]:
        if not self.training:
            yield from self._fetches(0)
            return
        start = self.start()
        began_before = self.epoch == start.epoch
        self.turn = self.turn + 1 if began_before else 0
        self.epoch = start.epoch
        tell_epoch(self.sampler, start.epoch)
        done = 0 if began_before else start.batches
        batches = _length(self.sampler)
        if 0 < batches < done:  # beside a longer loader
            self.turn, done = divmod(done, batches)
        for fetch in self._fetches(done):
            if done and start.order:
                self._compare(start.order, done)
                done = 0
            yield fetch

    def _fetches(self, done: int) -> Iterator[Fetch]:
        """All batches of an iteration but the first ``done``."""
        place = Place(self.seed, max(self.epoch, 0), self.rank, self.turn)
        checksum, seen = 0, bytearray()
        self.checksums = {0: 0}
        iterator = None
        for sampler in with_inner(self.sampler):
            generator = getattr(sampler, "generator", None)
            if of_a_library(sampler) and generator:  # which goes on from epoch to epoch
                generator.manual_seed(mix(ORDER, *place.of_all_ranks) >> 1)
        for batch in itertools.count():
            # Before each batch: a sampler that draws then draws the same, however far loader
            # workers are ahead of training.
            seed_generators(mix(ORDER, *place.of_all_ranks, batch))
            try:
                iterator = iterator or iter(self.sampler)
                index = next(iterator)
            except StopIteration:
                return
            again = _repeated(index, seen, self.rows)
            # A share's rows tell how many ranks there are; its order follows from numbers that
            # a resumed run has to have.
            content = b"" if isinstance(index, Share) else _content(index)
            checksum = zlib.crc32(content, checksum)
            self.checksums[batch + 1] = checksum
            if batch >= done:
                yield Fetch(place._replace(batch=batch), index, again)

    def _compare(self, then: Order, done: int) -> None:
        """Say so where the order of a resumed epoch is another one."""
        if self.checksums[done] != then.rows and self.rank == 0:
            print(
                f"resume: inexact: {type(self.sampler).__name__} gives another order than before, "
                "so some samples come twice in it and others not at all; let its order depend "
                "on torch's, numpy's or Python's own generator alone, or on set_epoch",
                flush=True,
            )

    def order(self, batches: int) -> Order:
        """What was given in so many batches; forgets the checksums of fewer."""
        length = _length(self.sampler)
        batches = batches % length if 0 < length < batches else batches
        for number in [number for number in self.checksums if number < batches]:
            del self.checksums[number]
        return Order(self.checksums.get(batches, 0))


def with_inner(sampler: Any) -> list[Any]:
    """A sampler, and the one that it makes batches of."""
    samplers = [sampler, getattr(sampler, "sampler", None)]
    return [sampler for sampler in samplers if sampler is not None]


def tell_epoch(sampler: Any, number: int) -> None:
    """Lightning does so, too, but after loader workers have begun to fetch."""
    for part in with_inner(sampler):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(number)


def of_a_library(sampler: Any) -> bool:
    """Whether its class is none of the owner's."""
    return type(sampler).__module__.partition(".")[0] in LIBRARIES


def is_of_torchdata(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "torchdata"


def _length(sized: Any) -> int:
    """Its length; 0 where it has none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return 0


def _repeated(rows: Any, seen: bytearray, most: int) -> tuple[int, ...]:
    """Positions of rows that were seen before in this epoch; remembers them, a bit for each.

    Args:
        most: the number of rows; those beyond are not looked at.
    """
    again = []
    for position, row in enumerate(rows if most else ()):
        if not isinstance(row, int | np.integer) or not 0 <= row < most:
            continue
        if not seen:
            seen.extend(bytes(most // 8 + 1))
        at, bit = row >> 3, 1 << (row & 7)
        if seen[at] & bit:
            again.append(position)
        seen[at] |= bit
    return tuple(again)


def _content(index: Any) -> bytes:
    """The rows of a batch as bytes that do not tell how rows are divided into batches."""
    if isinstance(index, Share):
        return index.rows.tobytes()
    try:
        return np.asarray(index, np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):
        return pickle.dumps(index, 5)


def exact_loader(
    loader: object, start: Callable[[], Start], seed: int, rank: int, training: bool
) -> object:
    """A copy of a loader that draws as this module says.

    What has no rows is returned as it is: a stream, and a loader that is no DataLoader.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    exact = copy.copy(loader)
    if is_of_torchdata(loader):
        exact.__class__ = DataLoader  # torchdata's would count what this module knows
    stream = IndexStream(loader, start, seed, rank, training)
    # A DataLoader's attributes cannot be assigned; this copy has not been iterated.
    name = "batch_sampler" if stream.of_rows else "sampler"
    vars(exact).update({"dataset": DrawingDataset(loader.dataset), name: stream})
    return exact


def index_streams(loaders: Any) -> list[IndexStream]:
    """Those of loaders that `exact_loader` made, in any collection."""
    streams = []
    for loader in CombinedLoader(loaders, "sequential").flattened:
        for name in ("sampler", "batch_sampler"):
            candidate = getattr(loader, name, None)
            if isinstance(candidate, IndexStream):
                streams.append(candidate)
    return streams
