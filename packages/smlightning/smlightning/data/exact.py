"""Loaders that start at any batch of any epoch, with the random numbers of an undisturbed run.

| loader                                   | how                                                   |
|------------------------------------------|-------------------------------------------------------|
| `batches.loader`                         | is a `RowLoader` already                              |
| DataLoader of a data set with rows       | `exact_loader` makes a `RowLoader` of the same parts  |
| loader with `state_dict`, as torchdata's | `Stream` records its state after each batch           |
| other iterables                          | `Stream`: begins the epoch again                      |

Lightning iterates these objects as they are: none is a DataLoader, which it would divide.
`training.loaders.Loaders` makes them of what a data module returns.
"""

import copy
import itertools
import pickle
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from smlightning.data import rng
from smlightning.errors import UserError
from smlightning.tensors import samples_of

ENDED = object()
AHEAD = 2  # batches that Lightning fetches before it trains on one
LIBRARIES = ("torch", "torchdata", "pytorch_lightning", "lightning_fabric", "lightning")
# Their order depends on nothing but the random numbers before it, and on set_epoch.
WITHOUT_MEMORY = (
    BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler,
    WeightedRandomSampler,
)  # fmt: skip
# The arguments of a DataLoader that do not choose rows; older torch has fewer of them.
SETTINGS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip

Start = Callable[[], tuple[int, int]]  # the epoch, and a rank's batches of it that are done


def start_of(trainer: Any) -> tuple[int, int]:
    """The epoch of training, and this rank's batches of it that are done, by Lightning's loop.

    A resumed run has set them from the checkpoint before Lightning asks for the first batch.
    """
    return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.completed


class Resumable:
    """A sampler that starts where training is.

    Attributes:
        start: called when an iteration begins.
        begun: the result of ``start`` in the first iteration of this epoch.
        epoch: of the latest iteration.
        turn: restarts in this epoch, while a longer loader continues.
    """

    start: Start = staticmethod(lambda: (0, 0))
    begun = -1, 0
    epoch = turn = 0

    def begin(self) -> int:
        """Begin an iteration, and return how many of its batches to skip.

        It depends on where training is alone: one in a hook changes nothing for that of training.
        """
        self.epoch, done = self.start()
        batches = length_of(self)
        if self.begun[0] == self.epoch and self.begun[1] < done:
            # The loop has not counted the last batch when Lightning fetches ahead.
            self.turn = (done + 1) // batches if batches else self.turn + 1
            return 0
        self.begun = self.epoch, done
        self.turn = 0
        if 0 < batches < done:  # another loader is longer
            self.turn, done = divmod(done, batches)
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


class Part(NamedTuple):
    """The part of each round of a sampler that is this rank's.

    Attributes:
        rank, ranks: a round has as many items for each rank; this one takes every ``ranks``th.
        size: rows of a rank's batch; 0 if the items are whole batches.
        drop_last: leave out a last batch of fewer rows.
    """

    rank: int = 0
    ranks: int = 1
    size: int = 0
    drop_last: bool = False

    def batches(self, items: int) -> int:
        """A rank's batches of so many items."""
        own = -(-items // self.ranks)
        if not self.size:
            return own
        return own // self.size if self.drop_last else -(-own // self.size)

    def repeated(self, items: int) -> int:
        """Items that all ranks together get too many, of so many."""
        own = -(-items // self.ranks)
        is_left_out = self.size and self.drop_last and own % self.size
        return 0 if is_left_out else -items % self.ranks

    def of(self, items: Sequence[Any], first: Sequence[Any]) -> Any:
        """This rank's batch of a round; None if it is left out.

        Args:
            first: the epoch's first round, which completes one that the ranks do not divide.
        """
        missing = -len(items) % self.ranks
        own = [*items, *itertools.islice(itertools.cycle(first), missing)][self.rank :: self.ranks]
        if not self.size:
            return own[0]
        return None if self.drop_last and len(own) < self.size else own


class ExactBatches(Resumable):
    """This rank's batches of an owner's sampler: a function of (seed, epoch), from any batch on.

    A sampler that keeps a generator, or whose class is the owner's and has no ``set_epoch``,
    remembers earlier epochs: in a resumed run it gives these once more, without a row being read.

    Args:
        sampler: gives the rows, or the batches, of all ranks that divide it.
        part: this rank's of them.
        rows: of the data; 0 if batches are not lists of rows.
        seed: of the run.
        rank: of this process.
        training: if False, every iteration has the same random numbers.
        first: the epoch in which the sampler was made.
        expected: the number of batches, and the checksum of their rows, that the interrupted run
            trained on last, in this epoch or the one before.
    """

    def __init__(
        self,
        sampler: Any,
        part: Part,
        rows: int,
        seed: int,
        *,
        rank: int = 0,
        training: bool = True,
        first: int = 0,
        expected: tuple[int, int] = (0, 0),
    ) -> None:
        self.inner, self.part = sampler, part
        self.rows, self.seed, self.rank, self.training = rows, seed, rank, training
        self.first, self.expected = first, expected
        self.checksums: dict[int, int] = {}  # of all ranks' rows, by number of batches
        self.moment = rng.Moment()  # of these checksums

    def __len__(self) -> int:
        return self.part.batches(len(self.inner))

    def __iter__(self) -> Iterator[Fetch]:
        done = self.begin() if self.training else 0
        self._repeat_epochs(done)
        moment = rng.Moment(self.seed)
        if self.training:
            set_epoch(self.inner, self.epoch)
            moment = rng.Moment(self.seed, self.epoch, self.turn)
        seen = bytearray(self.rows)
        for number, index in enumerate(self._batches(moment)):
            again = _repeated(index, seen) if self.rows else ()
            if number == done > 0:
                self._compare(done)
            if number >= done:
                yield Fetch(moment, index, again, rng.mix(self.rank, number))

    def _batches(self, moment: rng.Moment) -> Iterator[Any]:
        """This rank's batches of an iteration; records checksums."""
        first: list[Any] = []
        checksum = 0
        if moment != self.moment:
            self.moment, self.checksums = moment, {0: 0}
        for number, items in enumerate(self._rounds(moment)):
            first = first or items
            index = self.part.of(items, first)
            if index is None:
                return
            content = b"".join(map(_content, items))
            checksum = zlib.crc32(content, checksum)
            self.checksums[number + 1] = checksum
            yield index

    def _rounds(self, moment: rng.Moment) -> Iterator[list[Any]]:
        """The sampler's items, as many at a time as make one batch of every rank.

        Generators are seeded before each round: the order does not depend on how far loader workers
        are ahead of training. The sampler's iterator has ended when its last round is given, since
        Lightning does not ask for more, and the end may use random numbers, too.
        """
        iterator, before = None, None
        for number in itertools.count():
            rng.seed_generators(rng.mix(rng.ORDER, *moment, number))
            iterator = iterator or iter(self.inner)
            items = list(itertools.islice(iterator, self.part.ranks * (self.part.size or 1)))
            if before:
                yield before
            if not items:
                return
            before = items

    def _repeat_epochs(self, done: int) -> None:
        """Once in a run: let the sampler give the epochs before this one."""
        earlier = range(self.first, self.epoch)
        self.first = sys.maxsize
        if not earlier or not self.training or not remembers(self.inner):
            return
        for epoch in earlier:
            set_epoch(self.inner, epoch)
            for _ in self._batches(rng.Moment(self.seed, epoch)):
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
    called in each loader worker.
    """

    def __init__(self, dataset: Any, collate_fn: Any = None) -> None:
        self.inner, self.collate = dataset, collate_fn
        self.own: list[Any] | None = None  # generators, found in the worker
        self.epoch_set = -1

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
            self.own = own
        if self.epoch_set != moment.epoch:
            self.epoch_set = moment.epoch
            set_epoch(self.inner, moment.epoch)

    def _seed_batch(self, moment: rng.Moment, index: Any) -> None:
        number = rng.mix(rng.BATCH, *moment, _number_of(index))
        rng.seed_generators(number, self.own or ())


class RowLoader:
    """A loader of rows that starts where training is.

    Its public attributes are those of the owner's loader: dataset, sampler, num_workers, …

    Args:
        shown: the owner's loader, or its attributes by name.
        inner: of `SeededRows`; its batches are given.
        divides: whether each rank reads a part of the same data.
    """

    dataset: Any

    def __init__(self, shown: Any, inner: DataLoader, divides: bool) -> None:
        vars(self).update(_shown_by(shown, type(self)))
        self.inner, self.divides = inner, divides

    @property
    def batches(self) -> Any:
        """The sampler of `Fetch` or `batches.RankBatch`."""
        return sampler_of(self.inner)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        # A generator: Lightning calls iter() once only to see whether that is possible.
        yield from self.inner

    def read(self, requests: list[Any]) -> Iterable[Any]:
        """The batches of these requests, as this loader reads them: in a worker, if it has some."""
        settings = _settings(self.inner)
        settings |= {"num_workers": min(self.inner.num_workers, 1), "persistent_workers": False}
        if self.inner.batch_sampler is None:
            return DataLoader(self.inner.dataset, sampler=requests, batch_size=None, **settings)
        return DataLoader(self.inner.dataset, batch_sampler=requests, **settings)

    @property
    def _iterator(self) -> Any:
        """Lightning ends persistent workers by this attribute of a DataLoader."""
        return self.inner._iterator

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        self.inner._iterator = value


def exact_loader(
    loader: DataLoader,
    seed: int,
    rank: int = 0,
    ranks: int = 1,
    start: Start | None = None,
    first: int = 0,
    expected: tuple[int, int] = (0, 0),
) -> RowLoader:
    """A loader of the same data, sampler and workers that starts where training is.

    Args:
        loader: of all ranks' rows, unless its sampler is a DistributedSampler, which divides them.
        seed, rank, first, expected: as of `ExactBatches`.
        ranks: that divide the sampler.
        start: None in an evaluation.
    """
    sampler = sampler_of(loader)
    is_divided = divider_of(loader) is not None
    own = (0, 1) if is_divided or ranks == 1 else (rank, ranks)
    part = Part(*own)
    if type(sampler) is BatchSampler and not isinstance(sampler.sampler, Resumable):
        part = Part(*own, sampler.batch_size, sampler.drop_last)
        sampler = sampler.sampler
    if not isinstance(sampler, Resumable):
        rows = length_of(loader.dataset) if loader.batch_sampler is not None else 0
        sampler = ExactBatches(
            sampler,
            part,
            rows,
            seed,
            rank=rank,
            training=start is not None,
            first=first,
            expected=expected,
        )
    if start:
        sampler.start = start
    rows_of = SeededRows(loader.dataset, loader.collate_fn)
    settings = _settings(loader)
    if loader.batch_sampler is None:
        inner = DataLoader(rows_of, sampler=sampler, batch_size=None, **settings)
    else:
        inner = DataLoader(rows_of, batch_sampler=sampler, **settings)
    return RowLoader(loader, inner, divides=ranks > 1 and not is_divided)


def divider_of(loader: Any) -> DistributedSampler | None:
    """The sampler of a loader that divides the rows among the ranks itself."""
    parts = [loader.sampler, loader.batch_sampler, *_inner(loader.batch_sampler)]
    return next((part for part in parts if isinstance(part, DistributedSampler)), None)


def _settings(loader: DataLoader) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in SETTINGS if hasattr(loader, name)}


def _public(loader: Any) -> list[tuple[str, Any]]:
    """Names and values of an object's attributes, or of a mapping's."""
    values = loader if isinstance(loader, Mapping) else getattr(loader, "__dict__", {})
    return [(name, value) for name, value in values.items() if name[0] != "_"]


def _shown_by(loader: Any, kind: type) -> dict[str, Any]:
    """The loader's public attributes, for an object of a class whose methods stay its own."""
    return {name: value for name, value in _public(loader) if not hasattr(kind, name)}


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
        type(part) not in WITHOUT_MEMORY and not callable(getattr(part, "set_epoch", None))
        for part in parts
    )


def _inner(sampler: Any) -> list[Any]:
    """The sampler in a batch sampler."""
    inner = getattr(sampler, "sampler", None)
    return [inner] if callable(getattr(inner, "__iter__", None)) else []


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
    """A training loader that chooses its samples itself; has the loader's public attributes.

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
        start: called when an iteration begins.
        resumed: the result of `state` in the checkpoint.
    """

    def __init__(
        self,
        loader: Any,
        seed: int,
        rank: int,
        start: Start = Resumable.start,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        vars(self).update(_shown_by(loader, type(self)))
        self.loader, self.seed, self.rank = loader, seed, rank
        self.start = start
        if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            self.rank = 0  # its sampler needs the same order on all ranks
        self.is_rank_0 = rank == 0
        self.epoch = -1  # of the latest iteration
        self.given = 0  # batches in this epoch
        self.given_by_iterator = 0
        self.samples = 0  # in this epoch
        self.is_whole = True  # whether they are all of this epoch's
        self.iterator: Any = None  # until it has ended
        self.begun = 0  # batches that were trained on when it began
        self.ahead: list[Any] = []  # its first batches, until there are more than AHEAD
        self.is_shared = False  # and something else than training has read it
        self.resumed = resumed
        self.untried = 0  # of a worker each, the first batches after a state was loaded
        self.states: dict[int, dict[str, Any]] = {}  # the latest, by number of batches

    def __len__(self) -> int:
        """Raises TypeError if the loader has no length."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._has_ended()  # the iterator before this one, if it has no more
        epoch, done = self.start()
        if self.epoch == epoch and self.iterator is not None:
            untrained = self.given - self.given_by_iterator
            if done in (untrained, self.begun) and self.given_by_iterator == len(self.ahead):
                # Lightning (2.6.6) begins a reloaded loader without a length twice.
                yield from [*self.ahead]
                self._seed(self.given)
                yield from self._batches()
                return
            self._share()
        if self.epoch != epoch:
            self.epoch, self.given, self.samples = epoch, 0, 0
            self.states = {}
        self.begun, self.ahead = done, []
        self.given_by_iterator = 0
        if self.resumed and self.resumed["ended"] and self.resumed["epoch"] == self.epoch:
            self.samples = self.resumed["samples"]
            return  # this epoch is complete
        # First: torchdata's loader starts its workers when it gets a state, and each of `datasets`
        # keeps the epoch that it started in.
        set_epoch(self.loader, self.epoch)
        ended = bool(self.resumed and self.resumed["ended"])
        within = self._load()
        self.is_whole = within or not done
        # After an epoch's last state, mosaicml-streaming 0.13 gives the empty rest of that epoch.
        for _ in range(1 + ended):
            self._seed(-1 - self.given)
            self.iterator = iter(self.loader)
            if within:  # else the first batch belongs to the beginning: a stream may shuffle then
                self._seed(self.given)
            yield from self._batches()
            if self.given:
                return

    def _batches(self) -> Iterator[Any]:
        while (batch := self._next()) is not ENDED:
            self.given += 1
            self.given_by_iterator += 1
            self.ahead = [*self.ahead, batch] if self.given_by_iterator <= AHEAD else []
            self.samples += samples_of(batch)
            if keeps_state(self.loader):
                # Lightning fetches a batch before its hooks, and one more without a length.
                self.states.pop(self.given - 3, None)
                self.states[self.given] = self._state(ended=False)
            yield batch
            self._seed(self.given)
        self.iterator = None

    def _next(self) -> Any:
        """The next batch, or ENDED; a worker may reject the checkpoint's state only here."""
        try:
            batch = next(self.iterator, ENDED)
        except Exception as error:
            if self.untried:
                raise self._rejected(error) from error
            raise
        self.untried = max(0, self.untried - 1)
        return batch

    def _rejected(self, error: Exception) -> UserError:
        name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
        return UserError(
            f"{type(self.loader).__name__} does not accept its state from the checkpoint "
            f"({name}: {lines[-1].removeprefix(f'{name}: ')[:200]})",
            "bring back the earlier data and loader, or train from the start with --resume never",
        )

    def _share(self) -> None:
        """Print a line once: an iteration begins, and the one before has not ended."""
        if not self.is_shared and self.is_rank_0:
            print(
                "inexact: a hook iterates trainer.train_dataloader, a stream, and takes batches "
                "from training, which a resumed run does not repeat; iterate a loader of your own "
                "in hooks",
                flush=True,
            )
        self.is_shared = True

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
            # numbers for each; so the first one is made before they are seeded. litdata (0.2.76)
            # would write its present epoch into the state.
            if any(library_of(base) == "torchdata" for base in type(self.loader).__mro__):
                self.loader.state_dict()
        except Exception as error:  # each library has its own
            raise self._rejected(error) from error
        self.untried = max(1, getattr(self.loader, "num_workers", 0))
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
        if not batches and self.start()[0] == self.epoch:
            return None  # Lightning fetches ahead of the epoch's first hook from a reloaded loader
        # A loader that is shorter than the epoch of another one gave fewer.
        trained = min(batches, self.given) if batches else self.given
        if trained == self.given and self._has_ended():
            return self._state(ended=True)
        return self.states[trained]


def resumes_exactly(loader: Any) -> bool:
    """Whether a training loader resumes within an epoch, or prints `inexact` itself."""
    if isinstance(loader, Stream):
        return keeps_state(loader.loader)
    return isinstance(loader, RowLoader)


def sampler_of(loader: Any) -> Any:
    """The sampler that gives its batches; None if it is not a DataLoader."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None) if batches is None else batches
