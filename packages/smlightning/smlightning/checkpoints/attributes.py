"""Saves what training has changed and Lightning's checkpoints leave out; names what no file holds.

Lightning saves parameters, buffers and what ``state_dict`` returns. A run that resumes within an
epoch skips the hooks that begin it, so it would lack what they and the steps before have set:
plain attributes of the model, of callbacks, loggers and optimizers, and of the objects in them, the
user's and a library's (`parts`).

A checkpoint holds those that have changed since the start of training, by path, if they are plain:
numbers, text, tensors, arrays, collections of these, random generators, objects with a
``state_dict``. So it does for ``requires_grad``, train and eval modes, and sums of ``self.log``. A
line at the first checkpoint, and one after a resume, has the names of others that have changed, and
of those of data: its loaders have begun to fetch with other values.
"""

import copy
import io
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from smlightning import torch_files
from smlightning.checkpoints import values
from smlightning.cluster import collectives, exchange
from smlightning.data.exact import remembers
from smlightning.parts import COLLECTIONS, Nodes, Path, generators, parts, walk
from smlightning.tensors import checksums_of_parts, digest, leaves
from smlightning.training import loop
from smlightning.training.loaders import all_loaders
from smlightning.training.rank_checks import listed
from smlightning.training.seeds import OF_DATA

OF_RUN = (torch.nn.Module, pl.Callback, pl.loggers.Logger, torch.optim.Optimizer)
FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
LARGE = 10_000  # items of a collection in the data, of which only the items are compared
NOTHING = values.hashed(None)
SAVED = b"saved"  # the mark of what Lightning saves, or a loader repeats
SUMS = "self.log"  # the root of Lightning's sums of metrics
ITERATOR = "iterator"
REFERENCE = "reference"  # to an object that has another path, too

Mark = Callable[[Any], Any]


class Changes:
    """The parts of some roots that have changed since the first search."""

    def __init__(self) -> None:
        self.at_start: dict[Path, Any] | None = None  # marks
        self.present: dict[Path, Any] = {}  # in the latest search
        self.nodes: Nodes = {}
        self.always: set[Path] = set()  # parts that count as changed

    def search(
        self, roots: Iterable[tuple[Path, Any]], mark: Mark, modes: Mapping[int, bool]
    ) -> tuple[dict[Path, Any], set[Path]]:
        """The marks of parts that have changed, and paths of others that a resumed run lacks.

        Args:
            modes: of modules by id, where ``training`` is another one for a while.
        """
        self.present, marks = {}, {}
        changed: dict[Path, Any] = {}
        lost: set[Path] = set()
        made: dict[Path, Path] = {}  # paths in new objects, and these objects' own
        before = self.at_start or {}
        # Only the objects of the start stay alive: others may hold a step's graph.
        nodes = self.nodes if self.at_start is None else dict(self.nodes)
        for path, first, value, marked in walk(roots, mark, nodes):
            parent = self.present.get(path[:-1])
            if path[-1] == "training" and id(parent) in modes:
                value = modes[id(parent)]
                marked = mark(value)
            is_node, is_leaf = marked is None and first == path, marked is not None
            if first != path:
                marked = object() if first is None else (REFERENCE, first)
            self.present[path] = value
            marks[path] = marked = _kind_of(value) if is_node else marked
            then = before.get(path, NOTHING)
            is_kept = is_leaf and path in self.always
            if path[:-1] in made:
                top = made[path] = made[path[:-1]]
                is_state = is_leaf and marked != SAVED
                if is_state or (is_node and before.get(top, NOTHING) != NOTHING):
                    lost.add(top)
            elif marked == SAVED or (not _differ(then, marked) and not is_kept):
                continue
            elif is_node:
                made[path] = path
                if marked[0] is ITERATOR or (marked[-1] is not None and then != NOTHING):
                    lost.add(path)
            elif (
                first is None
                or (first != path and (first in made or first not in before))
                or (then == NOTHING and values.needs_present(value))
            ):
                lost.add(path)
            else:
                changed[path] = marked
        if self.at_start is None:
            self.at_start = marks
            return {}, set()
        for path in before.keys() - marks.keys():
            parent = path[:-1]
            is_state = before[path] not in (SAVED, NOTHING)
            if is_state and parent in marks and marks[parent] == before.get(parent):
                lost.add(path)
        return changed, lost

    def renew(self, names: set[Path], roots: Iterable[tuple[Path, Any]], mark: Mark) -> None:
        """Note the values of new objects in some of the roots; others' values stay as noted."""
        now = Changes()
        now.search(roots, mark, {})

        def is_new(path: Path) -> bool:
            first, _ = self.nodes.get(id(now.present.get(path[:-1])), (None, None))
            return path[:1] in names and first != path[:-1]

        kept = {path: value for path, value in (self.at_start or {}).items() if not is_new(path)}
        made = {path: value for path, value in (now.at_start or {}).items() if is_new(path)}
        self.at_start = {**kept, **made}
        others = {key: item for key, item in self.nodes.items() if item[0][:1] not in names}
        self.nodes = {**others, **now.nodes}


class Attributes:
    """Saves and restores the attributes that a fit has changed; prints which it cannot save."""

    def __init__(self) -> None:
        self.own, self.of_data = Changes(), Changes()
        self.seeded: list[Any] = []  # generators that the loaders seed for each row
        self.resumed: dict[str, Any] | None = None  # a `state`, until it is restored
        self.printed: set[str] = set()
        self.loaders: list[Any] = []  # references to those whose values were noted

    def begin(self, trainer: pl.Trainer) -> None:
        """Note the values once, after all hooks that start the training; restore resumed ones."""
        if self.own.at_start is None:
            self.loaders = [*map(weakref.ref, all_loaders(trainer.train_dataloader))]
            self.seeded = generators([part for _, part in _of_loaders(trainer)])
            self._search(trainer)
            self.own.always = _copies_of_weights(trainer, self.own)
            self._restore(trainer)
            self._forget()

    def begin_epoch(self, trainer: pl.Trainer) -> None:
        """Note the values of loaders that Lightning has made anew, as it does in a resumed run."""
        loaders = all_loaders(trainer.train_dataloader)
        if [reference() for reference in self.loaders] != loaders:
            self.loaders = [*map(weakref.ref, loaders)]
            names = {path for path, _ in _of_loaders(trainer)}
            self.of_data.renew(names, *self._data(trainer))

    def state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """The values that differ from those at the start, in main memory. Collective.

        Returns:
            ``common``: rank 0's values; ``ranks``: for each rank those that differ between ranks;
            ``lost``: names of rank 0's that cannot be saved; ``data``: paths and marks of what has
            changed in the data; ``metrics``: Lightning's latest.
        """
        changed, lost, of_data = self._search(trainer)
        saved = {}
        for path, mark in changed.items():
            try:
                saved[path] = self._saved(path, mark)
            except Exception:  # of any class: these objects are the user's
                lost.add(path)
        names = {*map(_name, lost)}
        if collectives.any_rank(bool(names)):
            names.update(*exchange.to_rank_0("attributes", sorted(names)))
        if trainer.is_global_zero:
            self._print(trainer, names, {*map(_name, of_data)})
        self._forget()
        apart = _apart({path: changed[path] for path in saved})
        ranks = []
        if collectives.any_rank(bool(apart)):
            content = io.BytesIO()
            torch.save([[path, saved.pop(path)] for path in apart], content)
            every = collectives.bytes_to_rank_0("attributes", content.getvalue())
            ranks = [torch_files.load(each) for each in every]
        return {
            "common": [[path, value] for path, value in saved.items()],
            "ranks": ranks,
            "lost": sorted(names),
            "data": [[path, mark] for path, mark in of_data.items()],
            "metrics": loop.callback_metrics(trainer),
        }

    def _search(self, trainer: pl.Trainer) -> tuple[dict[Path, Any], set[Path], dict[Path, Any]]:
        """Marks of changed values, paths of changes that cannot be saved, marks of changed data."""
        model, every = trainer.lightning_module, cast(Any, trainer)
        by_name = loop.module_modes(trainer)
        modes = {id(each): by_name[name] for name, each in model.named_modules() if name in by_name}
        changed, lost = self.own.search(_roots(trainer), _mark_of_own(trainer), modes)
        of_data, lost_of_data = self.of_data.search(*self._data(trainer), {})
        data = every.datamodule
        exactly = _mark_of_data(self._not_data(trainer), sys.maxsize)
        of_data = {path: exactly(self.of_data.present.get(path)) for path in of_data}
        saved = (
            _marks_within(data.state_dict(), exactly) if of_data and values.has_state(data) else ()
        )
        marks: dict[Path, Any] = dict.fromkeys(lost_of_data)
        marks.update((path, found) for path, found in of_data.items() if found not in saved)
        return changed, lost, marks

    def _data(self, trainer: pl.Trainer) -> tuple[list[tuple[Path, Any]], Mark]:
        """The roots of the data, and how their parts are compared."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        held = [item for item in self.own.present.items() if isinstance(item[1], OF_DATA)]
        roots = [((type(data).__name__,), data), *_of_loaders(trainer), *held]
        return roots, _mark_of_data(self._not_data(trainer))

    def _not_data(self, trainer: pl.Trainer) -> set[int]:
        """Ids of generators that loaders seed, and of what model and callbacks hold."""
        apart = {*map(id, self.seeded)}
        apart.update(key for key, (_, part) in self.own.nodes.items() if isinstance(part, OF_RUN))
        apart.update(map(id, trainer.callbacks))  # type: ignore[attr-defined]
        return apart

    def _forget(self) -> None:
        self.own.present, self.of_data.present = {}, {}

    def _saved(self, path: Path, mark: Any) -> Any:
        """The part at a path as plain data.

        Raises:
            values.OtherError: it cannot be saved.
        """
        if any(type(key) is tuple and len(key) > 1 for key in path):
            raise values.OtherError
        if type(mark) is tuple and mark[0] == REFERENCE:
            return {values.KIND: REFERENCE, "value": mark[1]}
        return values.plain(self.own.present[path], values.copied)

    def _print(self, trainer: pl.Trainer, names: set[str], of_data: set[str]) -> None:
        """Print each name once, with the methods that would save it."""
        data = type(trainer.datamodule).__name__  # type: ignore[attr-defined]
        for new, advice in (
            (names, "give each the methods state_dict and load_state_dict, or use plain values"),
            (of_data, f"save them in {data}.state_dict, and set them in {data}.load_state_dict"),
        ):
            names_to_print = sorted(new - self.printed)
            self.printed |= new
            if names_to_print:
                print(
                    f"checkpoint: inexact: after a resume, {listed(names_to_print)} will start "
                    f"anew; {advice}",
                    flush=True,
                )

    def _restore(self, trainer: pl.Trainer) -> None:
        """Restore the values of the checkpoint that the run resumes from."""
        resumed, self.resumed = self.resumed, None
        if resumed is None:
            return
        device = trainer.strategy.root_device
        metrics = {name: value.to(device) for name, value in resumed["metrics"].items()}
        loop.callback_metrics(trainer).update(metrics)
        ranks = resumed["ranks"]
        known = not ranks or len(ranks) == trainer.world_size
        of_rank = ranks[trainer.global_rank] if ranks and known else []
        lost = {*resumed["lost"], *self._other_data(resumed["data"])}
        if not known:
            lost.update(_name(path) for path, _ in ranks[0])
        every = [*resumed["common"], *of_rank]
        every.sort(key=lambda item: _is_reference(item[1]))  # after what they lead to is restored
        for path, value in every:
            try:
                self.own.always.add(path)
                present = self.own.present.get(path)
                if _is_reference(value):
                    value = self.own.present[value["value"]]
                else:
                    value = values.restored(value, present, device)
                if value is not present or value is None:
                    _set(trainer, self.own.present.get(path[:-1]), path, value)
            except Exception:  # of any class: these objects are the user's
                lost.add(_name(path))
        if lost and trainer.is_global_zero:
            print(
                f"resume: inexact: {listed(sorted(lost))} cannot be restored"
                + ("" if known else " on another number of ranks, which had values of their own"),
                flush=True,
            )

    def _other_data(self, saved: list[tuple[Path, bytes | None]]) -> set[str]:
        """Names of the data's parts that differ from those of the interrupted run."""
        mark, present = _mark_of_data(set(), sys.maxsize), self.of_data.present
        other = (path for path, found in saved if not found or mark(present.get(path)) != found)
        return {*map(_name, other)}


def _name(path: Path) -> str:
    """A path as text; of an item, its collection's."""
    while type(path[-1]) is tuple:
        path = path[:-1]
    keys = (str(key[-1]) if type(key) is tuple else key for key in path)
    return ".".join(key for key in keys if key != "cell_contents")


def _is_reference(value: Any) -> bool:
    return type(value) is dict and value.get(values.KIND) == REFERENCE


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # arrays in a list, say
        return True


def _kind_of(value: Any) -> tuple[Any, ...]:
    """The mark of an object that is entered, or, with its id, of one without parts."""
    if isinstance(value, FUNCTIONS):
        return value.__module__, value.__qualname__, None
    has_parts = isinstance(value, OF_RUN) or next(iter(parts(value)), None) is not None
    if isinstance(value, _BaseDataLoaderIter) or (isinstance(value, Iterator) and not has_parts):
        return ITERATOR, object()  # it may have gone on
    return type(value).__module__, type(value).__qualname__, None if has_parts else id(value)


def _set(trainer: pl.Trainer, parent: Any, path: Path, value: Any) -> None:
    key = path[-1]
    name, _, flag = str(key).rpartition(".")
    is_module = isinstance(parent, torch.nn.Module)
    if path[0] == SUMS:
        loop.set_epoch_sum(trainer, key, value)
    elif type(key) is tuple:
        parent[key[0]] = value
    elif is_module and flag == "requires_grad":
        parent._parameters[name].requires_grad_(value)
    elif is_module and key == "training":
        loop.set_module_mode(trainer, parent, value)
    elif is_module and key in parent._parameters:
        parent._parameters[key].data = value
    elif is_module and key in parent._buffers:
        parent._buffers[key] = value
    elif parent is None:
        raise values.OtherError  # this run lacks the object
    else:
        setattr(parent, key, value)


def _copies_of_weights(trainer: pl.Trainer, own: Changes) -> set[Path]:
    """Paths of tensors with the numbers of a weight: a resumed run would copy later weights."""
    weights = _first_numbers(trainer.lightning_module.state_dict())
    marks = {path: mark for path, mark in (own.at_start or {}).items() if type(mark) is bytes}
    kept = [path for path, mark in marks.items() if mark != SAVED]
    return {path for path in kept if weights & _first_numbers(own.present[path])}


def _first_numbers(value: Any) -> set[Any]:
    """Shapes of the tensors in a value, and checksums of their first numbers."""
    tensors = [each for each in leaves(value) if values.is_usual(each)]
    shapes = [tuple(each.shape) for each in tensors]
    return {*zip(shapes, checksums_of_parts(tensors), strict=True)}


def _apart(changed: dict[Path, Any]) -> list[Path]:
    """Paths of the values that differ between ranks; all if the paths do. Collective."""
    paths = sorted(changed, key=repr)
    numbers = [digest(repr(paths)), *(digest(repr(changed[path])) for path in paths)]
    if not collectives.differ([digest(numbers)]):
        return []
    if collectives.differ(numbers[:1]):
        return paths
    ranks = collectives.from_each_rank(torch.tensor(numbers[1:]))
    equal = (ranks == ranks[0]).all(0).tolist()
    return [path for path, same in zip(paths, equal, strict=True) if not same]


# Where the search begins, and what it compares


def _roots(trainer: pl.Trainer) -> Iterator[tuple[Path, Any]]:
    """Paths and objects of what the Trainer was given, without data, and sums of ``self.log``."""
    model = trainer.lightning_module
    every: Any = trainer
    callbacks = [each for each in every.callbacks if not values.has_state(each)]
    parts: list[tuple[str, Any]] = [(type(model).__name__, model)]
    parts += [(each.state_key, each) for each in callbacks]
    parts += [(type(each).__name__, each) for each in every.loggers if not _is_lightnings(each)]
    parts += [(f"optimizer {number}", each) for number, each in enumerate(trainer.optimizers)]
    counts: Counter[str] = Counter()
    for name, part in parts:
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name} {counts[name]}",), part
    yield from (((SUMS, key), value) for key, value in loop.epoch_sums(trainer).items())


def _is_lightnings(logger: Any) -> bool:
    """Whether its class is Lightning's: it finds its run by its arguments, and keeps no state."""
    names = ("pytorch_lightning.loggers.", "lightning.pytorch.loggers.")
    return type(logger).__module__.startswith(names)


def _of_loaders(trainer: pl.Trainer) -> Iterator[tuple[Path, Any]]:
    """Data sets, samplers and functions of the training loaders."""
    for number, loader in enumerate(all_loaders(trainer.train_dataloader)):
        yield (f"data set {number}",), getattr(loader, "dataset", None)
        yield (f"sampler {number}",), getattr(loader, "sampler", None)
        yield (f"collate_fn {number}",), getattr(loader, "collate_fn", None)


def _mark_of_own(trainer: pl.Trainer) -> Mark:
    """How parts of model, callbacks, loggers and optimizers are compared."""
    saved = map(_local, trainer.lightning_module.state_dict().values())
    weights = {tensor.data_ptr() for tensor in saved if values.is_usual(tensor)}
    every: Any = trainer
    optimizers = {*map(id, trainer.optimizers)}
    by_lightning = {id(each) for each in every.callbacks if values.has_state(each)}
    by_lightning.update(id(each.scheduler) for each in trainer.lr_scheduler_configs)

    def taken(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (not values.is_usual(value) or is_weight(value)):
            raise values.OtherError  # a part of the model by another name, say
        return values.content(value)

    def is_weight(tensor: Any) -> bool:
        return values.is_usual(tensor) and tensor.numel() and tensor.data_ptr() in weights

    def mark(value: Any) -> Any:
        if isinstance(value, OF_DATA) or id(value) in by_lightning:
            return SAVED
        if isinstance(value, torch.Tensor):
            local = _local(value)  # no checkpoint holds a shard, but it is noticed
            return SAVED if is_weight(local) else values.mark(local.detach(), values.content)
        return None if id(value) in optimizers else values.mark(value, taken)

    return mark


def _mark_of_data(apart: set[int], large: int = LARGE) -> Mark:
    """How parts of the data are compared: little is read of what is large.

    Args:
        apart: ids of objects that are not the data's own.
        large: items of a collection that is copied, and compared without entering its items.
    """

    def mark(value: Any) -> Any:
        is_set = isinstance(value, Dataset | Sampler) and hasattr(value, "set_epoch")
        is_repeated = isinstance(value, Sampler) and remembers(value)
        if is_set or is_repeated or isinstance(value, IterableDataset) or id(value) in apart:
            return SAVED  # as far as the loaders resume it
        if isinstance(value, pl.LightningDataModule):
            return None
        if isinstance(value, COLLECTIONS) and len(value) > large:
            return copy.copy(value)
        return values.mark(value, values.ends)

    return mark


def _marks_within(state: Any, mark: Mark) -> list[Any]:
    """The marks of all values within a state."""
    found = []
    for _ in walk([((), state)], lambda value: found.append(mark(value)), {}):
        pass
    return found


def _local(tensor: Any) -> Any:
    """This rank's shard of a sharded tensor; any other value as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
