"""Loaders that keep their own state, such as torchdata's: save it in a checkpoint, and resume.

The contract is torchdata's: after ``load_state_dict`` of the ``state_dict`` after a batch, the next
iterator continues with the batch after it; after the state of an ended iterator, with the next
epoch.

Lightning must not see these states. It would load rank 0's on every rank (2.6.6:
combined_loader.py, ``_load_state_dicts``), and skip a batch of a stream, since it prefetches one.
"""

import base64
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
from smlightning.cluster import collectives, exchange
from smlightning.data import rng
from smlightning.errors import UserError

BEGIN = -1  # in place of a batch's number: the creation of an iterator
CHUNK = 2**22  # characters of a state that a rank sends at once


class StatefulLoader:
    """A training loader that resumes from its own state; has all other attributes of the loader.

    Args:
        loader: has ``state_dict`` and ``load_state_dict``.
        start: called at the first batch of an epoch.
        resumed: the result of `state` in the checkpoint, or None.
        seed: of the run.
        rank: of this process.
    """

    def __init__(
        self,
        loader: Any,
        start: Callable[[], rng.Start],
        resumed: Mapping[str, Any] | None,
        seed: int,
        rank: int,
    ) -> None:
        self.loader = loader
        self.start = start
        self.resumed = resumed
        self.seed = seed
        self.is_rank_0 = rank == 0
        # Samplers of data with rows need the same order on all ranks.
        self.rank = 0 if _has_rows(loader) else rank
        self.epoch = -1  # of the latest iteration
        self.turn = 0  # restarts in this epoch, while a longer loader continues
        self.given = 0  # batches in this epoch
        self.given_in_turn = 0
        self.iterator: Any = None  # until it has ended
        self.states: dict[int, Any] = {}  # the latest three, by number of batches
        self.worker_init_fn = getattr(loader, "worker_init_fn", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Raises TypeError if the loader has no length."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._has_ended()  # the iterator before this one, if it has no more
        epoch = self.start().epoch
        if self.resumed and self.resumed["ended"] and self.resumed["epoch"] == epoch:
            return  # this epoch is complete
        self.turn = self.turn + 1 if epoch == self.epoch else 0
        self.given = self.given if epoch == self.epoch else 0
        self.given_in_turn = 0
        self.epoch = epoch
        within = self._load()
        for sampler in _samplers(self.loader):
            rng.set_epoch(sampler, epoch)
        if getattr(self.loader, "num_workers", 0):
            numbers = (self.seed, epoch, self.turn)
            self.loader.worker_init_fn = partial(_seed_worker, self.worker_init_fn, numbers)
        self._seed(BEGIN)
        self.iterator = iter(self.loader)
        if within:  # else the first batch belongs to the beginning: a sampler may shuffle then
            self._seed(self.given)
        for batch in self.iterator:
            self.given += 1
            self.given_in_turn += 1
            # A checkpoint is taken when the next batch is there, and Lightning fetches a stream's
            # batches one ahead of that.
            self.states.pop(self.given - 3, None)
            self.states[self.given] = copy.deepcopy(self.loader.state_dict())
            yield batch
            self._seed(self.given)
        self.iterator = None

    def _load(self) -> bool:
        """Load the checkpoint's state, once; returns whether it is from within this epoch."""
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
        except Exception as error:  # each library has its own
            raise UserError(
                f"{type(self.loader).__name__} does not accept its state from the checkpoint "
                f"({type(error).__name__}: {str(error).strip()[:200]})",
                "bring back the earlier data and loader, or train from the start with "
                "--resume never",
            ) from error
        return within

    def _seed(self, batch: int) -> None:
        alike = batch == BEGIN or (self.epoch == 0 and batch < rng.ALIKE)
        numbers = (self.seed, self.epoch, self.turn, 0 if alike else self.rank, batch)
        rng.seed_generators(rng.mix(rng.STREAM, *numbers))

    def _has_ended(self) -> bool:
        """Whether the iterator has ended; after its last batch, ends it.

        Lightning fetches no more than the length, so the state would still be within the epoch.
        """
        if self.iterator is not None and self.given_in_turn >= rng.length_of(self.loader) > 0:
            self.iterator = None if next(self.iterator, None) is None else self.iterator
        return self.iterator is None

    def state(self, batches: int) -> dict[str, Any] | None:
        """The state to resume from; None before the first batch.

        Args:
            batches: batches of this epoch that were trained on; 0: all.
        """
        if self.resumed is not None:
            return dict(self.resumed)
        if self.epoch < 0:
            return None
        # A loader that is shorter than the epoch of another one gave fewer.
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
    """Seed a worker process before it fetches, and call the user's ``worker_init_fn``."""
    rng.seed_generators(rng.mix(rng.STREAM, *numbers, BEGIN, worker))
    if own is not None:
        own(worker)


def keeps_state(loader: Any) -> bool:
    """Whether resuming a loader needs its state, not only the number of a batch.

    torchdata's loader of data with rows does not, unless the user's data set or sampler has one.
    """
    if not _is_stateful(loader):
        return False
    if not _has_rows(loader) or rng.library_of(loader) != "torchdata":
        return True
    samplers = itertools.chain.from_iterable(map(rng.with_inner, _samplers(loader)))
    users = [sampler for sampler in samplers if rng.library_of(sampler) not in rng.LIBRARIES]
    return any(_is_stateful(part) for part in (loader.dataset, *users))


def _samplers(loader: Any) -> list[Any]:
    named = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    return [sampler for sampler in named if sampler is not None]


def _is_stateful(part: Any) -> bool:
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def _has_rows(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def stateful_loaders(loaders: Any) -> list[StatefulLoader]:
    """The loaders in any collection that keep their own state."""
    every = CombinedLoader(loaders, "sequential").flattened
    return [loader for loader in every if isinstance(loader, StatefulLoader)]


def resumes_exactly(loaders: Any) -> bool:
    """Whether all loaders resume within an epoch, or print `inexact`."""
    every = CombinedLoader(loaders, "sequential").flattened
    return len(rng.index_streams(loaders)) + len(stateful_loaders(loaders)) == len(every)


# In a checkpoint


def states_of_ranks(loaders: Sequence[StatefulLoader], batches: int) -> list[dict[str, Any]]:
    """The states of the loaders of all ranks, by rank, on rank 0. Collective.

    Args:
        batches: see `StatefulLoader.state`.

    Raises:
        UserError: a state contains something other than plain values and tensors.
    """
    if not loaders:
        return []
    of_this_rank = {
        "states": [loader.state(batches) for loader in loaders],
        "facts": [_facts(loader) for loader in loaders],
    }
    text = base64.b64encode(_encoded(of_this_rank)).decode()
    chunks = []  # for each, those of all ranks
    while collectives.any_rank(bool(text)):
        chunks.append(exchange.to_rank_0("states of loaders", text[:CHUNK]))
        text = text[CHUNK:]
    contents = map("".join, zip(*chunks, strict=True))
    return [torch_files.load(base64.b64decode(content)) for content in contents]


def _facts(loader: Any) -> dict[str, Any]:
    """Settings that must not change for the state to be valid."""
    return {name: getattr(loader, name, None) for name in ("num_workers", "batch_size")}


def _encoded(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch_files.load(file.getvalue())
    except Exception as error:  # pickling calls the user's code
        reason = str(error).strip().splitlines() or [""]
        raise UserError(
            "The state_dict of the training loader cannot be saved in a checkpoint "
            f"({reason[0][:200]})",
            "return only text, numbers, bytes, tensors, lists and dictionaries from the state_dict "
            "of loader, data set and sampler; an array as tolist()",
        ) from error
    return file.getvalue()


def check_states(
    states: Sequence[Mapping[str, Any]], loader: Any, number: int, world_size: int
) -> None:
    """Check that a loader can resume: the number of ranks, of workers and the batch size are equal.

    Args:
        states: from `states_of_ranks`.
        loader: the ``number``th of the loaders with a state.

    Raises:
        UserError: they differ.
    """
    check_count(states, number + 1, at_least=True)
    before = {"world_size": len(states), **states[0]["facts"][number]}
    now = {"world_size": world_size, **_facts(loader)}
    changed = [f"{name}={before[name]}" for name in now if now[name] != before[name]]
    if changed:
        raise UserError(
            f"The checkpoint has the state of {type(loader).__name__} with {', '.join(changed)}, "
            f"and this run has {', '.join(f'{k}={v}' for k, v in now.items())}",
            "resume with the earlier values, or train from the start with --resume never",
        )


def check_count(states: Sequence[Mapping[str, Any]], count: int, at_least: bool = False) -> None:
    """Raise a UserError unless the checkpoint has the states of (at least) ``count`` loaders."""
    before = len(states[0]["facts"]) if states else 0
    if before < count or (before > count and not at_least):
        raise UserError(
            f"The checkpoint has the states of {before} training loaders, and this run has {count} "
            "loaders with a state",
            "bring back the earlier loaders, or train from the start with --resume never",
        )
