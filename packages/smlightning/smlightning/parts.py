"""The parts of any object: the search for state and for generators in all that a run holds.

It goes to any depth, and into objects of any package; each object is entered once. It does not
enter modules, classes, tensors, arrays, tables, nor the machinery of a run: Trainer, strategies,
threads, files, connections, writers of logs, progress bars.

A path is a tuple: a root's name, then names of attributes, and for an item ``(key,)``, or ``(None,
number)`` if another process cannot find it by its key.
"""

import contextlib
import gc
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from smlightning.one_lightning import PAIRS

PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
PLAIN_COLLECTIONS = frozenset((list, tuple, dict))
ENDS = PLAIN | {type}
COLLECTIONS = (list, tuple, dict, set, deque)
LONG = 1000  # items of a collection
LEVELS = 10  # of objects within objects; more may be a circle
OF_PYTHON = 1 << 9  # the flag of classes that a class statement made (CPython: Py_TPFLAGS_HEAPTYPE)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# A process has one of each, which StepSeed and SeededRows seed.
SHARED: tuple[Any, ...] = (
    torch.default_generator,
    np.random.mtrand._rand,  # type: ignore[attr-defined]
    random._inst,  # type: ignore[attr-defined]
)
ENTERED = (torch.nn.Module, torch.Tensor, *GENERATORS)  # also those of a package below
LIVE = (  # the beginnings of names of modules
    *(
        f"{lightning}.{name}."
        for lightning in sum(PAIRS, ())
        for name in ("trainer", "strategies", "plugins", "accelerators", "loops", "profilers",
                     "callbacks.progress", "core.optimizer", "fabric")
    ),
    "smlightning.cluster.", "smlightning.data.", "smlightning.checkpoints.",
    "smlightning.training.", "smlightning.reports.", "smlightning_sagemaker.",
    "torch._", "torch.distributed.", "torch.fx.", "torch.jit.", "torch.cuda.streams.",
    "torch.cuda.graphs.", "torch.utils.hooks.", "torch.utils.tensorboard.", "tensorboardX.",
    "_io.", "io.", "threading.", "_thread.", "weakref.", "logging.", "socket.", "ssl.",
    "subprocess.", "multiprocessing.", "concurrent.", "asyncio.", "tqdm.", "rich.",
)  # fmt: skip
TABLES = ("pandas.", "polars.", "pyarrow.", "PIL.", "transformers.tokenization_")
OF_LOADER = ("dataset", "sampler", "batch_sampler", "collate_fn", "generator")
OF_PARTIAL = ("func", "args", "keywords")
OF_FUNCTION = ("__defaults__", "__kwdefaults__")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Key = str | tuple[Any, ...]
Path = tuple[Any, ...]
Nodes = dict[int, tuple[Path, Any]]  # objects that were entered, by id, and their first paths


def is_plain(value: Any) -> bool:
    """Whether it is a number, text, None, or a collection of these."""
    return type(value) in PLAIN or _holds_only(value, PLAIN_COLLECTIONS.__contains__)


def _holds_only(value: Any, allows: Callable[[type], bool]) -> bool:
    """Whether an object leads to plain values and objects of these classes only.

    It takes some tenths of a second for a million objects, and `walk` many times as long.
    """
    level = [value]
    for _ in range(LEVELS):
        if not all(map(allows, {*map(type, level)})):
            return False
        level = [each for each in gc.get_referents(*level) if type(each) not in ENDS]
        if not level:
            return True
    return False


@cache
def is_live(kind: Any) -> bool:
    """Whether objects of this class belong to the machinery of a run."""
    if issubclass(kind, ENTERED):
        return False
    modules = (f"{base.__module__}." for base in kind.__mro__)
    is_of_python = issubclass(kind, type | types.ModuleType)
    return is_of_python or any(module.startswith(LIVE) for module in modules)


def walk(
    roots: Iterable[tuple[Path, Any]], mark: Callable[[Any], Any], nodes: Nodes
) -> Iterator[tuple[Path, Path | None, Any, Any]]:
    """Each part's path, its first path, itself and its mark.

    The paths differ for another reference to an object. The first path is None if another object
    has it: one that stood there in an earlier search, and is now elsewhere.

    Args:
        roots: one after the other; in each, the nearest parts come first.
        mark: is None for a part to enter.
        nodes: the objects that were entered, updated: an object keeps its first path of an earlier
            search.
    """
    earlier: Nodes = dict(nodes)
    found: Nodes = {}  # the objects stay alive, so that no other gets their ids
    owners: dict[Path, int] = {}
    nodes.clear()
    for root in roots:
        queue = deque([root])
        while queue:
            path, value = queue.popleft()
            kind: Any = type(value)
            if is_live(kind) or any(value is shared for shared in SHARED):
                continue
            first, number = path, id(value)
            if kind not in PLAIN and not isinstance(value, tuple):
                known = found.get(number) or earlier.get(number)
                first = known[0] if known else path
                if number in found or owners.setdefault(first, number) != number:
                    yield path, first if number in found else None, value, None
                    continue
                found[number] = first, value
            marked = mark(value)
            yield path, first, value, marked
            if marked is None:
                if number in found:
                    nodes[number] = found[number]
                queue.extend(((*first, key), part) for key, part in parts(value))


def generators(part: Any, outside: tuple[type, ...] = ()) -> list[Any]:
    """The random generators in an object; not those in objects of the classes ``outside``."""
    found = []

    def mark(value: Any) -> Any:
        if isinstance(value, GENERATORS):
            found.append(value)
        is_long = isinstance(value, COLLECTIONS) and len(value) > LONG
        is_empty = type(value) in PLAIN or (is_long and _holds_only(value, _is_record))
        return is_empty or isinstance(value, outside) or None

    for _ in walk([((), part)], mark, {}):
        pass
    return found


@cache
def _is_record(kind: Any) -> bool:
    """Whether all parts of its objects are known to Python's garbage collector."""
    is_ordinary = bool(kind.__flags__ & OF_PYTHON) and not issubclass(kind, (*ENTERED, np.ndarray))
    return kind in PLAIN_COLLECTIONS or (is_ordinary and not is_live(kind))


def parts(value: Any) -> Iterator[tuple[Key, Any]]:
    """Keys and parts of an object."""
    if isinstance(value, GENERATORS):
        return
    if isinstance(value, dict):
        for number, (key, part) in enumerate(list(value.items())):  # a thread may change it
            yield (key,) if type(key) in PLAIN else (None, number), part
    elif isinstance(value, list | tuple | deque):
        yield from (((number,), part) for number, part in enumerate(list(value)))
    elif isinstance(value, set | frozenset):
        yield from (((None, number), part) for number, part in enumerate(list(value)))
    elif isinstance(value, np.ndarray) and value.dtype == object:
        yield from (((number,), part) for number, part in enumerate(value.flat))
    elif isinstance(value, partial):
        yield from ((name, getattr(value, name)) for name in OF_PARTIAL)
    elif isinstance(value, types.FunctionType):
        yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((name, getattr(value, name)) for name in OF_FUNCTION)
    elif isinstance(value, types.CellType):
        yield from [("cell_contents", value.cell_contents)] if value != types.CellType() else []
    elif isinstance(value, types.MethodType | types.BuiltinMethodType):
        yield from ((name, getattr(value, name, None)) for name in ("__self__", "__func__"))
    yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    kind: Any = type(value)
    if isinstance(value, torch.Tensor | np.ndarray | Enum | PurePath) or is_table(kind):
        return
    if isinstance(value, types.FunctionType) and "<locals>" not in value.__qualname__:
        return  # it belongs to its module, as torch's marks on functions do
    own = getattr(value, "__dict__", None)
    own = dict(own) if isinstance(own, dict) else {}
    if isinstance(value, DataLoader):
        own = {name: own.get(name) for name in OF_LOADER}
    if isinstance(value, torch.nn.Module):
        yield from _of_module(value)
    for name, part in own.items():
        # Lightning leaves ``forward`` in a model (2.6.6: strategies/strategy.py, redirection).
        is_of_class = type(part) is types.MethodType and part.__func__ is getattr(kind, name, None)
        is_flag = name[0] == "_" and _is_logger(kind)  # of a connection that another process lacks
        if name not in _hidden(kind) and not is_of_class and not is_flag:
            yield name, part
    for name, member in _slots(kind):
        with contextlib.suppress(AttributeError):  # not set
            yield name, member.__get__(value)


@cache
def is_table(kind: Any) -> bool:
    """Whether objects of this class hold rows, or the rules of a tokenizer, and caches."""
    return any(f"{base.__module__}.".startswith(TABLES) for base in kind.__mro__)


def _of_module(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield "training", module.training
    for group in (module._parameters, module._buffers, module._modules):
        yield from ((name, part) for name, part in group.items() if part is not None)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield f"{name}.requires_grad", parameter.requires_grad
    yield from ((name, vars(module)[name]) for name in HOOKS if vars(module).get(name))


@cache
def _hidden(kind: Any) -> frozenset[str]:
    """Names of attributes that torch and Lightning keep for themselves."""
    if issubclass(kind, torch.optim.Optimizer):
        return frozenset(vars(torch.optim.SGD([torch.zeros(1)], 1.0)))
    bases = {base.__name__: base for base in kind.__mro__}
    if issubclass(kind, torch.nn.Module):
        return frozenset(vars(bases.get("LightningModule", torch.nn.Module)()))
    return frozenset()


@cache
def _is_logger(kind: Any) -> bool:
    return any(base.__name__ == "Logger" for base in kind.__mro__)


@cache
def _slots(kind: Any) -> list[tuple[str, Any]]:
    owners = (vars(base) for base in kind.__mro__ if "__slots__" in vars(base))
    members = (item for owner in owners for item in owner.items())
    return [item for item in members if isinstance(item[1], types.MemberDescriptorType)]
