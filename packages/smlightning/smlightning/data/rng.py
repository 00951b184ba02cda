"""Random numbers while a batch is fetched: a function of (seed, epoch, row).

Every rank shuffles an epoch with the same numbers, so a sampler that Lightning divides among the
ranks has one order. For each row, torch's, numpy's and Python's generators are seeded from (seed,
epoch, row): on any rank, in any loader worker, and after a resume.

A data set with its own generator, or one that gathers a batch at once, calls:

    def __getitem__(self, batch):
        noise = np.stack([rng.generator(row).normal(size=8) for row in batch.rows])
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

from smlightning.data.batches import RankBatch

ORDER, ROW, BATCH, OWN, STREAM, STEP, FETCH = range(7)  # the uses of random numbers
ALIKE = 2  # batches of a run for which streams have the same random numbers on all ranks
MASK = 2**64 - 1
LIBRARIES = ("torch", "torchdata", "pytorch_lightning", "lightning_fabric")


class BatchPosition(NamedTuple):
    """The position of a batch in a run.

    Attributes:
        seed: of the run.
        epoch: from 0; 0 in every evaluation, so all have the same random numbers.
        rank: of this process.
        turn: restarts of the loader in this epoch, while a longer loader continues.
        batch: number in the epoch, on this rank.
    """

    seed: int = 0
    epoch: int = 0
    rank: int = 0
    turn: int = 0
    batch: int = 0

    @property
    def of_all_ranks(self) -> tuple[int, int, int]:
        return self.seed, self.epoch, self.turn


class FetchRequest(NamedTuple):
    """A loader's request to its data set.

    Attributes:
        position: of the batch.
        index: from the sampler: a list of rows, or the index of a whole batch.
        again: positions in ``index`` of rows that came before on this rank in this epoch.
    """

    position: BatchPosition
    index: Any
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class Start:
    """The position at which a loader starts.

    Attributes:
        epoch: from 0.
        batches: number of its batches that are done.
        checksum: of the rows of these; None if unknown.
    """

    epoch: int = 0
    batches: int = 0
    checksum: int | None = None


_position = BatchPosition()  # of the batch that this process is fetching


def epoch() -> int:
    """The epoch of the current batch, also in persistent loader workers."""
    return _position.epoch


def generator(row: int) -> np.random.Generator:
    """A row's generator in this epoch: a function of (seed, epoch, row)."""
    return np.random.default_rng(mix(OWN, *_position.of_all_ranks, int(row)))


def mix(*numbers: int, before: int = 0) -> int:
    """64 bits that depend on every bit of ``numbers``.

    Each goes through the finalizer of splitmix64 (Steele et al. 2014).

    Args:
        before: the result for earlier numbers.
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
    """A number for an index from a sampler; for a row, its own number."""
    if isinstance(index, int | np.integer):
        return int(index)
    content = _content(index)
    return zlib.crc32(content) << 32 | zlib.adler32(content)


class SeededDataset(Dataset):
    """Seeds the generators for each row of a data set, and then for the batch.

    Other attributes are the data set's.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # unpickling asks before it exists
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, request: Any) -> Any:
        """A whole batch of a loader without ``batch_size``, or a row for any other index."""
        if not isinstance(request, FetchRequest):
            return self.dataset[request]
        _enter(request)
        _seed_batch(request)
        return self.dataset[request.index]

    def __getitems__(self, request: FetchRequest) -> Sequence[Any]:
        """The samples of a batch; afterwards the generators are the batch's, for ``collate_fn``."""
        _enter(request)
        if _gathers(self.dataset):
            _seed_batch(request)
            return self.dataset.__getitems__(request.index)
        samples = []
        for row, number in zip(request.index, _numbers_of_rows(request), strict=True):
            seed_generators(number)
            samples.append(self.dataset[row])
        _seed_batch(request)
        return samples


def _enter(request: FetchRequest) -> None:
    global _position
    _position = request.position


def _seed_batch(request: FetchRequest) -> None:
    seed_generators(mix(BATCH, *request.position.of_all_ranks, number_of(request.index)))


def _numbers_of_rows(request: FetchRequest) -> Iterator[int]:
    of_all = mix(ROW, *request.position.of_all_ranks)
    for at, row in enumerate(request.index):
        number = mix(number_of(row), before=of_all)
        if at in request.again:
            number = mix(request.position.rank, request.position.batch, at, before=number)
        yield number


def _gathers(dataset: Any) -> bool:
    """Whether a data set makes the samples of a batch in one call; a Subset if its data do."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


class IndexStream:
    """The batches of a loader's sampler with their positions; skips those done before a resume.

    Other attributes are the sampler's.

    Args:
        loader: its ``batch_sampler`` or ``sampler`` gives the batches.
        start: called at the first batch of an epoch.
        seed: of the run.
        rank: of this process.
        training: if False, every iteration has the same random numbers.
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
        self.rows = length_of(loader.dataset) if self.of_rows else 0
        self.start = start
        self.seed = seed
        self.rank = rank
        self.training = training
        self.epoch = -1  # of the latest iteration
        self.turn = 0  # restarts in this epoch
        self.checksums: dict[int, int] = {}  # of the rows, by number of batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[FetchRequest]:
        if not self.training:
            yield from self._requests(0)
            return
        start = self.start()
        began_before = self.epoch == start.epoch
        self.turn = self.turn + 1 if began_before else 0
        self.epoch = start.epoch
        set_epoch(self.sampler, start.epoch)
        done = 0 if began_before else start.batches
        batches = length_of(self.sampler)
        if 0 < batches < done:  # another loader is longer
            self.turn, done = divmod(done, batches)
        for request in self._requests(done):
            if done and start.checksum is not None:
                self._compare(start.checksum, done)
                done = 0
            yield request

    def _requests(self, done: int) -> Iterator[FetchRequest]:
        """All batches of an iteration except the first ``done``."""
        position = BatchPosition(self.seed, max(self.epoch, 0), self.rank, self.turn)
        checksum, seen = 0, bytearray()
        self.checksums = {0: 0}
        iterator = None
        for sampler in with_inner(self.sampler):
            generator = getattr(sampler, "generator", None)
            if library_of(sampler) in LIBRARIES and generator:  # it continues from epoch to epoch
                generator.manual_seed(mix(ORDER, *position.of_all_ranks) >> 1)
        for batch in itertools.count():
            # Before each batch: a sampler's random numbers then do not depend on how far loader
            # workers are ahead of training.
            seed_generators(mix(ORDER, *position.of_all_ranks, batch))
            try:
                iterator = iterator or iter(self.sampler)
                index = next(iterator)
            except StopIteration:
                return
            again = _repeated(index, seen, self.rows)
            # The rows of a RankBatch depend on the number of ranks, and its order depends on
            # options that a resumed run must not change.
            content = b"" if isinstance(index, RankBatch) else _content(index)
            checksum = zlib.crc32(content, checksum)
            self.checksums[batch + 1] = checksum
            if batch >= done:
                yield FetchRequest(position._replace(batch=batch), index, again)

    def _compare(self, before: int, done: int) -> None:
        """Print a line if the order of a resumed epoch differs."""
        if self.checksums[done] != before and self.rank == 0:
            print(
                f"resume: inexact: {type(self.sampler).__name__} gives another order than before, "
                "so this epoch repeats some samples and skips others; resume on as many ranks as "
                "before, and use only random numbers of torch, numpy or Python, or set_epoch, in "
                "a sampler of your own",
                flush=True,
            )

    def checksum(self, batches: int) -> int:
        """The checksum of the rows of this number of batches; deletes those of fewer."""
        length = length_of(self.sampler)
        batches = batches % length if 0 < length < batches else batches
        for number in [number for number in self.checksums if number < batches]:
            del self.checksums[number]
        return self.checksums.get(batches, 0)


def with_inner(sampler: Any) -> list[Any]:
    """A sampler, and the sampler inside it that gives the rows of its batches."""
    samplers = [sampler, getattr(sampler, "sampler", None)]
    return [sampler for sampler in samplers if sampler is not None]


def set_epoch(sampler: Any, number: int) -> None:
    """Call ``set_epoch``; Lightning calls it only after loader workers began to fetch."""
    for part in with_inner(sampler):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(number)


def library_of(part: Any) -> str:
    """The top package of its class; not one of LIBRARIES if the class is the user's."""
    return type(part).__module__.partition(".")[0]


def length_of(sized: Any) -> int:
    """The length, or 0 if there is none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return 0


def _repeated(rows: Any, seen: bytearray, most: int) -> tuple[int, ...]:
    """Positions of rows that came before in this epoch; marks all rows in ``seen``.

    Args:
        most: the number of rows of the data; 0 if batches are not lists of rows.
    """
    if not seen:
        seen.extend(bytes(most))
    again = []
    for position, row in enumerate(rows if most else ()):
        if isinstance(row, int | np.integer) and 0 <= row < most:
            if seen[row]:
                again.append(position)
            seen[row] = 1
    return tuple(again)


def _content(index: Any) -> bytes:
    """The rows of a batch as bytes that do not depend on the batch size."""
    if isinstance(index, RankBatch):
        return index.rows.tobytes()
    try:
        return np.asarray(index, np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):
        return pickle.dumps(index, 5)


def exact_loader(
    loader: object, start: Callable[[], Start], seed: int, rank: int, training: bool
) -> object:
    """A copy of a loader with the random numbers of this module.

    Returns a stream, and anything but a DataLoader, unchanged.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    exact = copy.copy(loader)
    if library_of(loader) == "torchdata":
        exact.__class__ = DataLoader  # torchdata's would count batches, too
    stream = IndexStream(loader, start, seed, rank, training)
    # A DataLoader's attributes cannot be assigned; this copy has not been iterated.
    name = "batch_sampler" if stream.of_rows else "sampler"
    vars(exact).update({"dataset": SeededDataset(loader.dataset), name: stream})
    return exact


def index_streams(loaders: Any) -> list[IndexStream]:
    """The streams of all loaders of `exact_loader` in any collection."""
    streams = []
    for loader in CombinedLoader(loaders, "sequential").flattened:
        for name in ("sampler", "batch_sampler"):
            candidate = getattr(loader, name, None)
            if isinstance(candidate, IndexStream):
                streams.append(candidate)
    return streams
