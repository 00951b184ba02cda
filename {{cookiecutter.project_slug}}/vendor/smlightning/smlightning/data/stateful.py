"""Loaders that keep a state of their own, as torchdata's: what a checkpoint holds of
each rank's, and how a resumed run goes on from it.

The contract is torchdata's: ``load_state_dict`` takes what ``state_dict`` gave after a batch, and
the next iterator goes on with the batch after it; after the state of an iterator that had ended
it begins the next epoch.

Lightning does not see these states. It would load rank 0's on every rank (2.6.6:
combined_loader.py, ``_load_state_dicts``), and of a stream, of which it fetches a batch ahead, one
that leaves that batch out.
"""

import copy
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset

from smlightning import torch_files
from smlightning.cluster import collectives
from smlightning.data import draws
from smlightning.errors import UserError

BEGIN = -1  # in place of a batch's number: what is drawn when an iterator is made


class StatefulLoader:
    """A training's loader whose position is in its state alone.

    Attributes of the loader are this one's, too, but for the state.

    Args:
        loader: has ``state_dict`` and ``load_state_dict``.
        start: asked when an epoch's first batch is.
        resumed: what `state` gave before; None where nothing is to be resumed.
        seed: of the run.
        rank: of this process.
    """

    def __init__(
        self,
        loader: Any,
        start: Callable[[], draws.Start],
        resumed: Mapping[str, Any] | None,
        seed: int,
        rank: int,
    ) -> None:
        self.loader = loader
        self.start = start
        self.resumed = resumed
        self.seed = seed
        self.is_rank_0 = rank == 0
        # The samplers of data with rows have to give all ranks one order.
        self.rank = 0 if _has_rows(loader) else rank
        self.epoch = -1  # of the latest iteration
        self.turn = 0  # how often it was begun anew in this epoch, beside a longer one
        self.given = 0  # batches in this epoch
        self.given_in_turn = 0
        self.iterator: Any = None  # until it has ended
        self.states: dict[int, Any] = {}  # after so many batches of this epoch: the latest two
        self.worker_init_fn = getattr(loader, "worker_init_fn", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Raises TypeError where the loader has no length."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._has_ended()  # the iterator before this one, if it has no more
        epoch = self.start().epoch
        if self.resumed and self.resumed["ended"] and self.resumed["epoch"] == epoch:
            return  # it has given all of this epoch
        self.turn = self.turn + 1 if epoch == self.epoch else 0
        self.given = self.given if epoch == self.epoch else 0
        self.given_in_turn = 0
        self.epoch = epoch
        within = self._load()
        for sampler in _samplers(self.loader):
            draws.tell_epoch(sampler, epoch)
        if getattr(self.loader, "num_workers", 0):
            numbers = (self.seed, epoch, self.turn)
            self.loader.worker_init_fn = partial(_seed_worker, self.worker_init_fn, numbers)
        self._draw_for(BEGIN)
        self.iterator = iter(self.loader)
        if within:  # else the first batch belongs to the beginning: a sampler may draw its order
            self._draw_for(self.given)
        for batch in self.iterator:
            self.given += 1
            self.given_in_turn += 1
            # Lightning fetches a stream's batches one ahead of those that are trained on.
            self.states.pop(self.given - 2, None)
            self.states[self.given] = copy.deepcopy(self.loader.state_dict())
            yield batch
            self._draw_for(self.given)
        self.iterator = None

    def _load(self) -> bool:
        """Load a checkpoint's state, once; whether it is one within the epoch."""
        self.states = {}
        if self.resumed is None:
            return False
        resumed, self.resumed = self.resumed, None
        within = resumed["epoch"] == self.epoch
        if within:
            self.turn, self.given = resumed["turn"], resumed["given"]
            self.given_in_turn = resumed["given_in_turn"]
            self.states[self.given] = resumed["state"]
        elif not resumed["ended"] and self.is_rank_0:
            print(
                "resume: inexact: epochs end before their loader does (limit_train_batches), and "
                "its state goes on within the one before",
                flush=True,
            )
        if getattr(self.loader, "persistent_workers", False) and self.epoch and self.is_rank_0:
            print(
                "resume: inexact: the loader keeps its workers from epoch to epoch "
                "(persistent_workers), and new ones draw other random numbers than they would have",
                flush=True,
            )
        try:
            self.loader.load_state_dict(copy.deepcopy(resumed["state"]))
        except Exception as error:  # a library's own way to say that it does not fit
            raise UserError(
                f"{type(self.loader).__name__} does not take the state that the checkpoint has of "
                f"it ({type(error).__name__}: {str(error).strip()[:200]})",
                "bring back the data and the loader of then, or train from the start with "
                "--resume never",
            ) from error
        return within

    def _draw_for(self, batch: int) -> None:
        alike = batch == BEGIN or (self.epoch == 0 and batch < draws.ALIKE)
        numbers = (self.seed, self.epoch, self.turn, 0 if alike else self.rank, batch)
        draws.seed_generators(draws.mix(draws.STREAM, *numbers))

    def _has_ended(self) -> bool:
        """Whether the iterator has; one that has given all of its batches is asked once more.

        Of a loader with a length Lightning takes no more than these, and its state would be one
        within the epoch.
        """
        if self.iterator is not None and self.given_in_turn >= _length(self.loader) > 0:
            self.iterator = None if next(self.iterator, None) is None else self.iterator
        return self.iterator is None

    def state(self, batches: int) -> dict[str, Any] | None:
        """What `StatefulLoader` goes on from.

        Args:
            batches: that were trained on in this epoch; 0: it is complete.

        Returns:
            None where no batch was given yet.
        """
        if self.resumed is not None:
            return dict(self.resumed)
        if self.epoch < 0:
            return None
        # A loader that is shorter than another one's epoch gave fewer.
        ahead = max(self.given - batches, 0) if batches else 0
        ended = not ahead and self._has_ended()
        return {
            "state": self.loader.state_dict() if ended else self.states[self.given - ahead],
            "ended": ended,
            "epoch": self.epoch,
            "turn": self.turn,
            "given": self.given - ahead,
            "given_in_turn": self.given_in_turn - ahead,
        }


def _seed_worker(own: Callable[[int], Any] | None, numbers: Sequence[int], worker: int) -> None:
    """In a worker process, before it fetches; then what the owner's loader does there."""
    draws.seed_generators(draws.mix(draws.STREAM, *numbers, BEGIN, worker))
    if own is not None:
        own(worker)


def keeps_state(loader: Any) -> bool:
    """Whether a loader has a state of its own that the number of a batch does not tell.

    torchdata's loader of data with rows has none, unless the owner's data set or sampler has one.
    """
    if not _is_stateful(loader):
        return False
    if not _has_rows(loader) or not draws.is_of_torchdata(loader):
        return True
    samplers = itertools.chain.from_iterable(map(draws.with_inner, _samplers(loader)))
    owners = [sampler for sampler in samplers if not draws.of_a_library(sampler)]
    return any(_is_stateful(part) for part in (loader.dataset, *owners))


def _samplers(loader: Any) -> list[Any]:
    named = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    return [sampler for sampler in named if sampler is not None]


def _is_stateful(part: Any) -> bool:
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def _has_rows(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _length(loader: Any) -> int:
    """Its number of batches; 0 where it has none."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return 0


def stateful_loaders(loaders: Any) -> list[StatefulLoader]:
    """Those of a training's loaders, in any collection, that keep a state of their own."""
    every = CombinedLoader(loaders, "sequential").flattened
    return [loader for loader in every if isinstance(loader, StatefulLoader)]


def resumes_exactly(loaders: Any) -> bool:
    """Whether all loaders begin where a resumed run's epoch is, or say themselves that they do
    not.
    """
    every = CombinedLoader(loaders, "sequential").flattened
    return len(draws.index_streams(loaders)) + len(stateful_loaders(loaders)) == len(every)


# In a checkpoint


def states_of_ranks(loaders: Sequence[StatefulLoader], batches: int) -> list[dict[str, Any]]:
    """What a checkpoint holds of each rank's loaders, by rank; nothing where there are none.
    Collective: every rank has as many.

    Args:
        batches: as `StatefulLoader.state` has them.

    Raises:
        UserError: a state holds what is no plain value and no tensor.
    """
    if not loaders:
        return []
    of_this_rank = {
        "states": [loader.state(batches) for loader in loaders],
        "facts": [_facts(loader) for loader in loaders],
    }
    contents = collectives.bytes_from_each_rank(_encoded(of_this_rank))
    return [torch_files.load(content) for content in contents]


def _facts(loader: Any) -> dict[str, Any]:
    """What has to stay as it is for the state to be valid."""
    return {name: getattr(loader, name, None) for name in ("num_workers", "batch_size")}


def _encoded(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch_files.load(file.getvalue())
    except Exception as error:  # pickling knows no bounds
        reason = str(error).strip().splitlines() or [""]
        raise UserError(
            "The training loader's state_dict holds what cannot be kept in a checkpoint "
            f"({reason[0][:200]})",
            "let it, and those of its data set and sampler, hold text, numbers, bytes, tensors and "
            "lists and dictionaries of these: an array's tolist()",
        ) from error
    return file.getvalue()


def refuse_another_place(
    then: Sequence[Mapping[str, Any]], loader: Any, number: int, world_size: int
) -> None:
    """Refuse to go on from the states of another number of ranks or workers.

    Args:
        then: what `states_of_ranks` gave.
        loader: that is to go on, the ``number``th of those that keep a state.

    Raises:
        UserError: they were of others.
    """
    refuse_other_loaders(then, number + 1, at_least=True)
    name = type(loader).__name__
    cure = "go on with as many as then, or train from the start with --resume never"
    if len(then) != world_size:
        raise UserError(
            f"{name} keeps its own state, and the checkpoint has it of each of {len(then)} ranks: "
            f"with {world_size} it cannot go on",
            cure,
        )
    before, now = then[0]["facts"][number], _facts(loader)
    for fact, value in now.items():
        if before[fact] != value:
            raise UserError(
                f"{name} keeps its own state, and the checkpoint has it of a loader with "
                f"{fact}={before[fact]}: with {fact}={value} it cannot go on",
                cure,
            )


def refuse_other_loaders(
    then: Sequence[Mapping[str, Any]], count: int, at_least: bool = False
) -> None:
    """Refuse another number of loaders that keep a state of their own.

    Raises:
        UserError: the checkpoint has states of more or fewer than ``count``.
    """
    before = len(then[0]["facts"]) if then else 0
    if before < count or (before > count and not at_least):
        raise UserError(
            f"The checkpoint has the state of {before} training loaders that keep their own, and "
            f"there are {count} now",
            "bring back the loaders of then, or train from the start with --resume never",
        )
