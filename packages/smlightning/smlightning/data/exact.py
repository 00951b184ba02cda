"""Loaders that start at any batch of any epoch, with the random numbers of an undisturbed run.

| loader                                   | how                                                   |
|------------------------------------------|-------------------------------------------------------|
| `batches.loader`                         | as it is: its sampler is `Resumable`                  |
| DataLoader of a data set with rows       | `exact_loader` makes another one of the same parts    |
| loader with `state_dict`, as torchdata's | `Stream` records its state after each batch           |
| other iterables                          | `Stream`: begins the epoch again                      |

`training.loaders.ExactLoaders`, which train.py names, calls these functions.
"""

import copy
import itertools
import pickle
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from smlightning.data import rng
from smlightning.errors import UserError
from smlightning.tensors import samples_of

LIBRARIES = ("torch", "torchdata", "pytorch_lightning", "lightning_fabric")
# The arguments of a DataLoader that do not choose rows; older torch has fewer of them.
SETTINGS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


class Resumable:
    """A sampler that can start at any batch of any epoch."""

    epoch = 0
    turn = -1  # restarts in this epoch, while a longer loader continues
    done = 0  # batches to skip in the next iteration

    expected: tuple[int, int] = (0, 0)

    def start_at(self, epoch: int, batches: int = 0, expected: tuple[int, int] = (0, 0)) -> None:
        """Start the next iteration in this epoch, without its first ``batches``.

        Args:
            expected: the number of batches, and the checksum of their rows, that the interrupted
                run trained on last, in this epoch or the one before.
        """
        self.epoch, self.done, self.turn, self.expected = epoch, batches, -1, expected

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before each epoch, but only after loader workers began to fetch."""
        if epoch != self.epoch:
            self.start_at(epoch)

    def begin(self) -> int:
        """Begin an iteration, and return how many of its batches to skip."""
        turns, done = 0, self.done
        batches = length_of(self)
        if 0 < batches < done:  # another loader is longer
            turns, done = divmod(done, batches)
        self.turn += 1 + turns
        self.done = 0
        return done


class Fetch(NamedTuple):
    """A request of a sampler to a data set.

    Attributes:
        moment: of the random numbers.
        index: from the owner's sampler: a list of rows, or the index of a whole batch.
        again: positions in ``index`` of rows that came before on this rank in this epoch.
        number: of the batch, for the random numbers of these rows.
    """

    moment: rng.Moment
    index: Any
    again: tuple[int, ...] = ()
    number: int = 0


class ExactBatches(Resumable):
    """The batches of an owner's sampler: a function of (seed, epoch), from any batch on.

    A sampler that keeps a generator, or whose class is the owner's and has no ``set_epoch``,
    remembers earlier epochs: in a resumed run it gives these once more, without a row being read.
    Other attributes are the sampler's.

    Args:
        sampler: gives lists of rows, or, without ``rows``, the index of a whole batch.
        rows: of the data; 0 if batches are not lists of rows.
        seed: of the run.
        rank: of this process.
        training: if False, every iteration has the same random numbers.
        first: the epoch in which the sampler was made.
    """

    def __init__(
        self,
        sampler: Any,
        rows: int,
        seed: int,
        rank: int = 0,
        training: bool = True,
        first: int = 0,
    ) -> None:
        self.inner = sampler
        self.rows, self.seed, self.rank, self.training = rows, seed, rank, training
        self.first = first
        self.checksums: dict[int, int] = {}  # of the rows of this epoch, by number of batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Fetch]:
        done = self.begin() if self.training else 0
        self._repeat_epochs(done)
        moment = rng.Moment(self.seed)
        if self.training:
            set_epoch(self.inner, self.epoch)
            moment = rng.Moment(self.seed, self.epoch, self.turn)
        seen = bytearray(self.rows)
        for number, index in enumerate(self._indices(moment)):
            again = _repeated(index, seen) if self.rows else ()
            if number == done > 0:
                self._compare(done)
            if number >= done:
                yield Fetch(moment, index, again, rng.mix(self.rank, number))

    def _indices(self, moment: rng.Moment) -> Iterator[Any]:
        """What the sampler gives in an iteration; records checksums.

        Generators are seeded before each batch: the order does not depend on how far loader workers
        are ahead of training. The sampler's iterator has ended when its last batch is given, since
        Lightning does not ask for more, and the end may use random numbers, too.
        """
        iterator, before, ended = None, None, object()
        self.checksums = {0: 0}
        for number in itertools.count():
            rng.seed_generators(rng.mix(rng.ORDER, *moment, number))
            iterator = iterator or iter(self.inner)
            index = next(iterator, ended)
            if number:
                yield before
            if index is ended:
                return
            self.checksums[number + 1] = zlib.crc32(_content(index), self.checksums[number])
            before = index

    def _repeat_epochs(self, done: int) -> None:
        """Once in a run: let the sampler give the epochs before this one."""
        earlier = range(self.first, self.epoch)
        self.first = sys.maxsize
        if not earlier or not self.training or not remembers(self.inner):
            return
        for epoch in earlier:
            set_epoch(self.inner, epoch)
            for _ in self._indices(rng.Moment(self.seed, epoch)):
                pass
        if not done:
            self._compare(self.expected[0])

    def _compare(self, batches: int) -> None:
        """Print a line if the order of a resumed epoch, or of the epoch before, differs."""
        expected, self.expected = self.expected, (0, 0)
        if self.rank or not expected[0] or self.checksums.get(batches) == expected[1]:
            return
        print(
            f"resume: inexact: {type(self.inner).__name__} gives another order than before, "
            "so this epoch repeats some samples and skips others; resume on as many ranks as "
            "before, and use only random numbers of torch, numpy or Python, or set_epoch, in "
            "a sampler of your own",
            flush=True,
        )

    def checksum(self, batches: int) -> int:
        """The checksum of the rows of this number of batches; deletes those of fewer."""
        length = length_of(self)
        batches = batches % length if 0 < length < batches else batches
        for number in [number for number in self.checksums if number < batches]:
            del self.checksums[number]
        return self.checksums.get(batches, 0)


class SeededRows(Dataset):
    """Seeds the generators for each row of a data set, and then for the batch.

    Also those that the data set and ``collate_fn`` keep in their attributes. Its ``set_epoch`` is
    called in each loader worker. Other attributes are the data set's, to read and to set.
    """

    def __init__(self, dataset: Any, collate_fn: Any = None) -> None:
        vars(self).update(inner=dataset, collate=collate_fn, own=None, epoch_set=-1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # unpickling asks before it exists
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, request: Any) -> Any:
        """A whole batch of a loader without ``batch_size``, or a row for any other index."""
        moment = getattr(request, "moment", None)
        if moment is None:
            return self.inner[request]
        index = request.index if isinstance(request, Fetch) else request
        self._enter(moment)
        self._seed_batch(moment, index)
        return self.inner[index]

    def __getitems__(self, request: Fetch) -> Sequence[Any]:
        """The samples of a batch; afterwards the generators are the batch's, for ``collate_fn``."""
        self._enter(request.moment)
        if _gathers(self.inner):
            self._seed_batch(request.moment, request.index)
            return self.inner.__getitems__(request.index)
        of_all = rng.mix(rng.ROW, *request.moment)
        samples = []
        for at, row in enumerate(request.index):
            number = rng.mix(_number_of(row), before=of_all)
            if at in request.again:
                number = rng.mix(request.number, at, before=number)
            rng.seed_generators(number, self.own or ())
            samples.append(self.inner[row])
        self._seed_batch(request.moment, request.index)
        return samples

    def _enter(self, moment: rng.Moment) -> None:
        rng.enter(moment)
        if self.own is None:
            own = [*rng.own_generators(self.inner), *rng.own_generators(self.collate)]
            vars(self).update(own=own)
        if self.epoch_set != moment.epoch:
            vars(self).update(epoch_set=moment.epoch)
            set_epoch(self.inner, moment.epoch)

    def _seed_batch(self, moment: rng.Moment, index: Any) -> None:
        number = rng.mix(rng.BATCH, *moment, _number_of(index))
        rng.seed_generators(number, self.own or ())


def exact_loader(
    loader: DataLoader, seed: int, rank: int = 0, training: bool = True, first: int = 0
) -> DataLoader:
    """A DataLoader of the same data, batches and workers, whose sampler is `Resumable`.

    Args:
        loader: divided among the ranks. `batches.loader` is returned as it is.
        seed, rank, training, first: as of `ExactBatches`.
    """
    of_rows = loader.batch_sampler is not None
    sampler = sampler_of(loader)
    if not isinstance(sampler, Resumable):
        rows = length_of(loader.dataset) if of_rows else 0
        sampler = ExactBatches(sampler, rows, seed, rank, training, first)
    elif isinstance(loader.dataset, SeededRows):
        return loader
    settings = {name: getattr(loader, name) for name in SETTINGS if hasattr(loader, name)}
    rows_of = SeededRows(loader.dataset, loader.collate_fn)
    if of_rows:
        made = DataLoader(rows_of, batch_sampler=sampler, **settings)
        vars(made)["sampler"] = loader.sampler  # torch made one that nobody uses
        return made
    return DataLoader(rows_of, sampler=sampler, batch_size=None, **settings)


def has_rows(loader: Any) -> bool:
    """Whether `exact_loader` takes it: its iterator is torch's, and so are its stateful parts."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    parts = [loader.dataset, loader.sampler, loader.batch_sampler]
    parts = [part for part in parts if library_of(part) not in LIBRARIES]
    if keeps_state(loader) and any(map(keeps_state, parts)):
        return False
    iterates = (type(loader).__iter__, type(loader)._get_iterator)
    return all(library_of(method) in LIBRARIES for method in iterates)


def keeps_state(part: Any) -> bool:
    """Whether it has the two methods of torchdata's contract."""
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def remembers(sampler: Any) -> bool:
    """Whether its order may depend on how often it was iterated before."""
    if rng.own_generators(sampler):
        return True
    parts = [sampler, *_inner(sampler)]
    return any(
        library_of(part) not in LIBRARIES and not callable(getattr(part, "set_epoch", None))
        for part in parts
    )


def _inner(sampler: Any) -> list[Any]:
    """The sampler in a batch sampler, and the one that Lightning divides among the ranks."""
    inner = [getattr(sampler, "sampler", None)]
    for part in (sampler, *inner):
        inner.append(getattr(getattr(part, "dataset", None), "_sampler", None))
    return [part for part in inner if part is not None and callable(getattr(part, "__iter__", 0))]


def set_epoch(part: Any, number: int) -> None:
    """Call ``set_epoch`` of a sampler or data set, and of those in it."""
    for each in (part, getattr(part, "sampler", None), getattr(part, "dataset", None)):
        if each is not None and callable(getattr(each, "set_epoch", None)):
            each.set_epoch(number)


def library_of(part: Any) -> str:
    """The top package of a function or of an object's class."""
    module = getattr(part, "__module__", None) or type(part).__module__
    return str(module).partition(".")[0]


def length_of(sized: Any) -> int:
    """The length, or 0 if there is none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return 0


def _gathers(dataset: Any) -> bool:
    """Whether a data set makes the samples of a batch in one call; a Subset if its data do."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def _repeated(rows: Any, seen: bytearray) -> tuple[int, ...]:
    """Positions of rows that came before in this epoch; marks all rows in ``seen``."""
    again = []
    for position, row in enumerate(rows):
        if isinstance(row, int | np.integer) and 0 <= row < len(seen):
            if seen[row]:
                again.append(position)
            seen[row] = 1
    return tuple(again)


def _number_of(index: Any) -> int:
    """A number for an index from a sampler; for a row, its own number."""
    if isinstance(index, int | np.integer):
        return int(index)
    return rng.number_of(_content(index))


def _content(index: Any) -> bytes:
    """The rows of a batch as bytes that do not depend on the batch size."""
    try:
        return np.asarray(getattr(index, "rows", index), np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):
        return pickle.dumps(index, 5)


class Stream:
    """A training loader that chooses its samples itself; has all other attributes of the loader.

    Before each batch its generators are seeded by (seed, epoch, batch, rank), its state is recorded
    after it, and the samples are counted. The contract is torchdata's: after ``load_state_dict`` of
    the ``state_dict`` after a batch, the next iterator continues with the batch after it; after the
    state of an ended iterator, with the next epoch. Lightning must not see these states. It would
    load rank 0's on every rank, and skip a batch, since it fetches one ahead (2.6.6:
    combined_loader.py, ``_load_state_dicts``).

    Args:
        loader: an iterable; with ``state_dict`` and ``load_state_dict``, it resumes exactly.
        seed: of the run.
        rank: of this process.
    """

    def __init__(self, loader: Any, seed: int, rank: int) -> None:
        self.loader, self.seed, self.rank = loader, seed, rank
        if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            self.rank = 0  # its sampler needs the same order on all ranks
        self.is_rank_0 = rank == 0
        self.next_epoch = 0  # of the next iteration
        self.epoch = -1  # of the latest iteration
        self.given = 0  # batches in this epoch
        self.given_by_iterator = 0
        self.samples = 0  # in this epoch
        self.iterator: Any = None  # until it has ended
        self.resumed: Mapping[str, Any] | None = None  # the result of `state` in the checkpoint
        self.states: dict[int, dict[str, Any]] = {}  # the latest, by number of batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Raises TypeError if the loader has no length."""
        return len(self.loader)

    def start_at(self, epoch: int, resumed: Mapping[str, Any] | None = None) -> None:
        """Start the next iteration in this epoch.

        Args:
            resumed: the result of `state` in the checkpoint.
        """
        self.next_epoch = epoch
        self.resumed = resumed or self.resumed

    def __iter__(self) -> Iterator[Any]:
        self._has_ended()  # the iterator before this one, if it has no more
        if self.epoch != self.next_epoch:
            self.epoch, self.given, self.samples = self.next_epoch, 0, 0
            self.states = {}
        self.given_by_iterator = 0
        if self.resumed and self.resumed["ended"] and self.resumed["epoch"] == self.epoch:
            return  # this epoch is complete
        within = self._load()
        set_epoch(self.loader, self.epoch)
        self._seed(-1 - self.given)
        self.iterator = iter(self.loader)
        if within:  # else the first batch belongs to the beginning: a stream may shuffle then
            self._seed(self.given)
        for batch in self.iterator:
            self.given += 1
            self.given_by_iterator += 1
            self.samples += samples_of(batch)
            if keeps_state(self.loader):
                # Lightning fetches a batch before its hooks, and one more without a length.
                self.states.pop(self.given - 3, None)
                self.states[self.given] = self._state(ended=False)
            yield batch
            self._seed(self.given)
        self.iterator = None

    def _state(self, ended: bool) -> dict[str, Any]:
        return {
            "state": copy.deepcopy(self.loader.state_dict()),
            "ended": ended,
            "epoch": self.epoch,
            "given": self.given,
            "given_by_iterator": self.given_by_iterator,
            "samples": self.samples,
        }

    def _load(self) -> bool:
        """Load the checkpoint's state, once; returns whether it is from within this epoch."""
        if self.resumed is None:
            return False
        resumed, self.resumed = self.resumed, None
        within = bool(resumed["epoch"] == self.epoch)
        if within:
            self.given, self.samples = resumed["given"], resumed["samples"]
            self.given_by_iterator = resumed["given_by_iterator"]
            self.states[self.given] = dict(resumed)
        elif not resumed["ended"] and self.is_rank_0:
            print(
                "resume: inexact: limit_train_batches ended the epoch before its loader's end, "
                "and the loader continues there instead of starting anew",
                flush=True,
            )
        if getattr(self.loader, "persistent_workers", False) and self.epoch and self.is_rank_0:
            print(
                "resume: inexact: with persistent_workers=True, new workers get other random "
                "numbers than the workers of the interrupted run",
                flush=True,
            )
        try:
            self.loader.load_state_dict(copy.deepcopy(resumed["state"]))
            # torchdata's makes an iterator that has ended, and then another one, with random
            # numbers for each; so the first one is made before they are seeded.
            self.loader.state_dict()
        except Exception as error:  # each library has its own
            raise UserError(
                f"{type(self.loader).__name__} does not accept its state from the checkpoint "
                f"({type(error).__name__}: {str(error).strip()[:200]})",
                "bring back the earlier data and loader, or train from the start with "
                "--resume never",
            ) from error
        return within

    def _seed(self, batch: int) -> None:
        alike = batch < 0 or (self.epoch == 0 and batch < rng.ALIKE)
        rank = 0 if alike else self.rank
        rng.seed_generators(rng.mix(rng.STREAM, self.seed, self.epoch, rank, batch))

    def _has_ended(self) -> bool:
        """Whether the iterator has ended; after its last batch, ends it.

        Lightning fetches no more than the length, so the state would still be within the epoch.
        """
        if self.iterator is not None and self.given_by_iterator >= length_of(self.loader) > 0:
            self.iterator = None if next(self.iterator, None) is None else self.iterator
        return self.iterator is None

    def state(self, batches: int) -> dict[str, Any] | None:
        """The state to resume from; None before the first batch, and without one.

        Args:
            batches: batches of this epoch that were trained on; 0: all.
        """
        if self.resumed is not None:
            return dict(self.resumed)
        if not self.given or not keeps_state(self.loader):
            return None
        # A loader that is shorter than the epoch of another one gave fewer.
        trained = min(batches, self.given) if batches else self.given
        if trained == self.given and self._has_ended():
            return self._state(ended=True)
        return self.states[trained]


def resumes_exactly(loader: Any) -> bool:
    """Whether a training loader resumes within an epoch, or prints `inexact` itself."""
    if isinstance(loader, Stream):
        return keeps_state(loader.loader)
    return isinstance(sampler_of(loader), Resumable)


def sampler_of(loader: Any) -> Any:
    """The sampler that gives its batches; None if it is not a DataLoader."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None) if batches is None else batches
