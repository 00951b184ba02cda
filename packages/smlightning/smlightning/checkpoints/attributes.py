"""Saves attributes of model and callbacks, which Lightning's checkpoints leave out.

Lightning saves parameters and buffers. A run that resumes within an epoch skips the hooks that
begin it, so it would lack what they and the steps before have set: attributes of the model and of
its modules (a curriculum, a moving average, a metric's sums), of callbacks without a
``state_dict``, train and eval modes, ``requires_grad``, random generators, sums of ``self.log``.

A checkpoint holds the attributes that have changed since the start of training and are plain:
numbers, text, tensors, arrays, generators, collections of these, objects with a ``state_dict``, and
copies of the network. So it does for the user's own optimizers. A resumed run prints the names of
others that have changed, and of those of data: its loaders have begun to fetch without them.
"""

import contextlib
import io
import random
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from smlightning import torch_files
from smlightning.cluster import collectives
from smlightning.data.exact import remembers
from smlightning.tensors import checksums, digest
from smlightning.training import loop
from smlightning.training.loaders import all_loaders

KIND = "kind of object"  # the key of a mapping that stands for an object of another class
PLAIN = (type(None), bool, int, float, complex, str, bytes)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
# They have their own ways to resume.
LEFT_OUT = (torch.optim.Optimizer, Dataset, DataLoader, pl.LightningDataModule)
OF_DATA = (Dataset, Sampler, pl.LightningDataModule)
HIDDEN = frozenset(vars(pl.LightningModule()))
OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1)], 1.0)))
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
HASHED = 2**20  # numbers of a tensor; of a larger one so many and the sum are compared
DEPTH = 4  # of collections within collections
SUMS = "self.log"  # the owner of Lightning's sums of metrics

Name = tuple[str, str]  # of an owner and of its attribute
Take = Callable[[torch.Tensor], Any]  # its result stands for a tensor


class _OtherError(TypeError):
    """A value that is not saved."""


class Attributes:
    """Saves and restores the attributes that a fit has changed."""

    def __init__(self) -> None:
        self.at_start: dict[Name, Any] = {}
        self.resumed: dict[str, Any] | None = None  # a `state`, until it is restored

    def begin(self, trainer: pl.Trainer) -> None:
        """Note the values once, after all hooks that start the training; restore resumed ones."""
        if not self.at_start:
            self.at_start = _values(trainer, _mark)
            self._restore(trainer)

    def state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """The values that differ from those at the start, in main memory. Collective.

        Returns:
            ``common``: rank 0's values; ``ranks``: for each rank those that differ between ranks;
            ``lost``: names of rank 0's that cannot be saved; ``metrics``: Lightning's latest.
        """
        marks = _values(trainer, _mark)
        changed = {
            name: mark
            for name, mark in marks.items()
            if name not in self.at_start or self.at_start[name] != mark
        }
        values = _values(trainer, _copy, changed) if changed else {}
        lost = [".".join(name) for name in changed if name not in values]
        changed = {name: changed[name] for name in values}
        apart = _apart(changed)
        ranks = []
        if collectives.any_rank(bool(apart)):
            content = io.BytesIO()
            torch.save([[*name, values.pop(name)] for name in apart], content)
            every = collectives.bytes_to_rank_0("attributes", content.getvalue())
            ranks = [torch_files.load(each) for each in every]
        common = [[*name, value] for name, value in values.items()]
        metrics = loop.callback_metrics(trainer)
        return {"common": common, "ranks": ranks, "lost": lost, "metrics": metrics}

    def _restore(self, trainer: pl.Trainer) -> None:
        """Restore the values of the checkpoint that the run resumes from."""
        resumed, self.resumed = self.resumed, None
        if resumed is None:
            return
        loop.callback_metrics(trainer).update(_restored(resumed["metrics"], None, trainer))
        ranks = resumed["ranks"]
        known = not ranks or len(ranks) == trainer.world_size
        of_rank = ranks[trainer.global_rank] if ranks and known else []
        owners = {owner: (item, own) for owner, item, own in _owners(trainer)}
        lost = list(resumed["lost"])
        lost += [] if known else [f"{owner}.{name}" for owner, name, _ in ranks[0]]
        for owner, name, value in [*resumed["common"], *of_rank]:
            try:
                item, own = owners[owner]
                if isinstance(item, OF_DATA):  # loaders have begun to fetch with other values
                    if digest(_restored(value, None, trainer)) != digest(own.get(name)):
                        raise _OtherError
                    continue
                _set(trainer, item, name, _restored(value, own.get(name), trainer))
            except Exception:  # of any class: these objects are the user's
                lost.append(f"{owner}.{name}")
        if lost and trainer.is_global_zero:
            print(
                f"resume: inexact: {', '.join(sorted(lost)[:8])} cannot be restored"
                + ("" if known else " on another number of ranks, which had values of their own"),
                flush=True,
            )


def _apart(changed: dict[Name, Any]) -> list[Name]:
    """Names of the values that differ between ranks; all if the names do. Collective."""
    names = sorted(changed)
    numbers = [digest(repr(names)), *(digest(repr(changed[name])) for name in names)]
    if not collectives.differ([digest(numbers)]):
        return []
    if collectives.differ(numbers[:1]):
        return names
    ranks = collectives.from_each_rank(torch.tensor(numbers[1:]))
    equal = (ranks == ranks[0]).all(0).tolist()
    return [name for name, same in zip(names, equal, strict=True) if not same]


# Owners and their attributes


def _owners(trainer: pl.Trainer) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each owner's name, itself, and its attributes."""
    model = trainer.lightning_module
    modes = loop.module_modes(trainer)
    for path, module in model.named_modules():
        own = {name: value for name, value in vars(module).items() if name not in HIDDEN}
        own.update((name, module._buffers[name]) for name in module._non_persistent_buffers_set)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                own[f"{name}.requires_grad"] = parameter.requires_grad
        own["training"] = modes.get(path, module.training)
        yield f"{type(model).__name__}.{path}".rstrip("."), module, own
    every: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in every:
        if _is_users(callback) and type(callback).state_dict is pl.Callback.state_dict:
            yield callback.state_key, callback, vars(callback)
    for number, optimizer in enumerate(trainer.optimizers):
        if _is_users(optimizer):
            names = vars(optimizer).keys() - OF_OPTIMIZERS
            yield f"optimizer {number}", optimizer, {name: vars(optimizer)[name] for name in names}
    yield from _of_data(trainer)
    yield SUMS, trainer, loop.epoch_sums(trainer)


def _of_data(trainer: pl.Trainer) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Data module, data sets of rows and samplers, and plain attributes of theirs."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    name = type(data).__name__
    held = vars(data).items() if data else ()
    parts = {name: data, **{f"{name}.{key}": part for key, part in held}}
    for number, loader in enumerate(all_loaders(trainer.train_dataloader)):
        sampler = getattr(loader, "sampler", None)
        parts[f"data set {number}"] = getattr(loader, "dataset", None)
        parts[f"sampler {number}"] = None if remembers(sampler) else sampler
    known: list[Any] = []
    for path, part in parts.items():
        while isinstance(part, OF_DATA) and not isinstance(part, IterableDataset):
            kinds = torch.Tensor if isinstance(part, Sampler) else PLAIN
            own = {key: value for key, value in vars(part).items() if isinstance(value, kinds)}
            is_set = hasattr(part, "set_epoch")  # and so is the same in a resumed run
            if not is_set and not any(part is other for other in known):
                yield path, part, {key: value for key, value in own.items() if key[0] != "_"}
            known.append(part)
            path, part = f"{path}.dataset", getattr(part, "dataset", None)  # of a Subset


def _is_users(item: Any) -> bool:
    """Whether an object's class is neither of a library nor of this package."""
    name = type(item).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return bool(file) and not file.startswith(INSTALLED) and not name.startswith("smlightning")


def _set(trainer: pl.Trainer, item: Any, name: str, value: Any) -> None:
    parameter, _, flag = name.rpartition(".")
    if item is trainer:
        loop.set_epoch_sum(trainer, name, value)
    elif flag == "requires_grad":
        item._parameters[parameter].requires_grad_(value)
    elif name == "training":
        loop.set_module_mode(trainer, item, value)
    elif isinstance(item, torch.nn.Module) and name in item._buffers:
        item._buffers[name] = value
    else:
        setattr(item, name, value)


def _values(
    trainer: pl.Trainer, take: Take, wanted: dict[Name, Any] | None = None
) -> dict[Name, Any]:
    """The attributes that can be saved, as plain values; if ``wanted`` is given, only those."""
    saved = map(_local, trainer.lightning_module.state_dict().values())
    weights = {tensor.data_ptr() for tensor in saved if _is_plain(tensor)}

    def taken(tensor: torch.Tensor) -> Any:
        if take is _mark:
            tensor = _local(tensor)  # no checkpoint holds a shard, but it is noticed
        if not _is_plain(tensor) or (tensor.numel() and tensor.data_ptr() in weights):
            raise _OtherError  # a part of the model by another name, say
        return take(tensor.detach())

    values = {}
    for owner, item, own in _owners(trainer):
        for name, value in own.items():
            if wanted is None or (owner, name) in wanted:
                try:
                    values[owner, name] = _plain(value, taken)
                except Exception:  # of any class: these objects are the user's
                    if take is _mark and _is_users(item):
                        values[owner, name] = _identity(value, taken)
    return values


def _local(tensor: Any) -> Any:
    """This rank's shard of a sharded tensor; any other value as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout == torch.strided


def _identity(value: Any, take: Take) -> Any:
    """A mark of an object that cannot be saved: it changes with the object's own attributes."""
    is_module = isinstance(value, torch.nn.Module)  # the model itself, or a sharded one
    inside = value.state_dict() if is_module else getattr(value, "__dict__", {})
    parts = []
    for name, part in inside.items():
        try:
            parts.append((name, _plain(part, take)))
        except Exception:
            parts.append((name, 0 if is_module else id(part)))
    return type(value).__qualname__, parts or id(value)


def _mark(tensor: torch.Tensor) -> Any:
    step = -(-tensor.numel() // HASHED) or 1
    total = checksums([tensor]) if step > 1 else []
    return tuple(tensor.shape), total, digest(tensor.flatten()[::step])


def _copy(tensor: torch.Tensor) -> Any:
    moved = tensor.device.type != "cpu"
    return {KIND: "tensor", "value": tensor.to("cpu", copy=True), "moved": moved}


# Values


def _plain(value: Any, take: Take, depth: int = 0) -> Any:
    """A value as plain data.

    Raises:
        _OtherError: it cannot be saved.
    """

    def within(part: Any) -> Any:
        return _plain(part, take, depth + 1)

    if type(value) in PLAIN:
        return value
    if depth > DEPTH or isinstance(value, LEFT_OUT):
        raise _OtherError
    if isinstance(value, torch.Tensor):
        return take(value)
    if isinstance(value, np.generic):
        return within(value.item())
    if type(value) in (list, tuple, set):
        return type(value)(map(within, value))
    if type(value) in MAPPINGS and all(type(key) in PLAIN for key in value):
        return {key: within(part) for key, part in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {KIND: "array", "value": take(torch.tensor(value))}
    if isinstance(value, deque):
        return {KIND: "deque", "value": [*map(within, value)]}
    if isinstance(value, torch.Generator):
        return {KIND: "torch generator", "value": take(value.get_state())}
    if isinstance(value, np.random.Generator):
        return {KIND: "numpy generator", "value": within(value.bit_generator.state)}
    if isinstance(value, random.Random):
        return {KIND: "python generator", "value": value.getstate()}
    if isinstance(value, torch.nn.Module):  # no part of the model: an average of it, say
        return {KIND: "module", "value": [within(value.state_dict()), _own(value, within)]}
    if callable(getattr(value, "state_dict", None)) and hasattr(value, "load_state_dict"):
        return {KIND: "state_dict", "value": within(value.state_dict())}
    raise _OtherError


def _own(module: torch.nn.Module, within: Callable[[Any], Any]) -> list[Any]:
    """Path, name and value of the attributes that can be saved, of a module and those in it."""
    found = []
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if name not in HIDDEN:
                with contextlib.suppress(_OtherError):
                    found.append([path, name, within(value)])
    return found


def _restored(saved: Any, present: Any, trainer: pl.Trainer) -> Any:
    """The value that `_plain` gave; where it can be, the object that is present is changed."""

    def within(part: Any) -> Any:
        return _restored(part, None, trainer)

    if type(saved) in (list, tuple, set):
        fits = type(present) is type(saved) and len(present) == len(saved)
        pairs = zip(saved, present if fits else len(saved) * [None], strict=True)
        items = type(saved)(_restored(part, other, trainer) for part, other in pairs)
        if type(present) is list is type(saved):
            present[:] = items
            return present
        return items
    if type(saved) is not dict:
        return saved
    if KIND not in saved:
        here = present if isinstance(present, dict) else {}
        mapping = {key: _restored(part, here.get(key), trainer) for key, part in saved.items()}
        if here is not present:
            return mapping
        present.clear()
        present.update(mapping)
        return present
    kind, value = saved[KIND], saved["value"]
    if kind == "tensor":
        return value.to(trainer.strategy.root_device) if saved["moved"] else value.clone()
    if kind == "array":
        return within(value).numpy()
    if kind == "deque":
        present.clear()
        present.extend(within(value))
    if kind == "torch generator":
        present.set_state(within(value))
    if kind == "numpy generator":
        present.bit_generator.state = within(value)
    if kind == "python generator":
        present.setstate(value)
    if kind == "module":
        present.load_state_dict(within(value[0]))
        for path, name, part in value[1]:
            setattr(present.get_submodule(path), name, within(part))
    if kind == "state_dict":
        present.load_state_dict(within(value))
    return present
