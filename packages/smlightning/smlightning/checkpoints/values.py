"""Values of any object as plain data, which a checkpoint can hold, and hashes of them.

Plain are numbers, text, tensors, arrays, collections of these, random generators, members of an
Enum, and objects with the methods ``state_dict`` and ``load_state_dict``.
"""

import marshal
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, timedelta
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from smlightning.parts import PLAIN, is_plain
from smlightning.tensors import checksums, digest

KIND = "kind of object"  # the key of a mapping that stands for an object of another class
COMPARED = (PurePath, date, timedelta, range, slice, torch.dtype, torch.device)  # but not saved
HASHED = 2**20  # numbers of a tensor; of a larger one so many and the sum are compared
END = 2**16  # numbers at each end of a tensor, where only these are read

Take = Callable[[Any], Any]  # its result stands for a tensor or an array


class OtherError(TypeError):
    """A value that is not saved."""


def _sorted(items: Any) -> list[Any]:
    return sorted(items, key=repr)


def _refilled(present: Any, items: Any) -> Any:
    """The collection that is present, since its items do not tell all of it."""
    present.clear()
    (present.update if isinstance(present, dict) else present.extend)(items)
    return present


def _set(name: str) -> Callable[[Any, Any], Any]:
    """Calls the method of the object that is present with the saved state."""

    def set_state(present: Any, state: Any) -> Any:
        getattr(present, name)(state)
        return present

    return set_state


def _set_bits(present: Any, state: Any) -> Any:
    present.bit_generator.state = state
    return present


# Class, plain content, and an object from the one that is present and this content.
FORMS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "set": (set, _sorted, lambda _, items: set(items)),
    "frozenset": (frozenset, _sorted, lambda _, items: frozenset(items)),
    "deque": (deque, list, _refilled),
    "defaultdict": (defaultdict, dict, _refilled),
    "OrderedDict": (OrderedDict, dict, lambda _, items: OrderedDict(items)),
    "Counter": (Counter, dict, lambda _, items: Counter(items)),
    "member": (Enum, lambda each: each.name, lambda present, name: type(present)[name]),
    "NamedTuple": (tuple, list, lambda present, items: type(present)(*items)),
    "torch generator": (torch.Generator, torch.Generator.get_state, _set("set_state")),
    "numpy generator": (
        np.random.Generator,
        lambda each: each.bit_generator.state,
        _set_bits,
    ),
    "RandomState": (
        np.random.RandomState, lambda each: each.get_state(legacy=False), _set("set_state")
    ),
    "Random": (random.Random, random.Random.getstate, _set("setstate")),
}  # fmt: skip
EXACT = (set, frozenset, deque, defaultdict, OrderedDict, Counter)  # no classes that derive of them


def has_state(part: Any) -> bool:
    """Whether its class has the two methods of a state; those of Lightning's bases return none."""
    kind = type(part)
    own = getattr(getattr(kind, "state_dict", None), "__qualname__", "")
    is_base = own in ("Callback.state_dict", "LightningDataModule.state_dict")
    return bool(own) and not is_base and callable(getattr(kind, "load_state_dict", None))


def needs_present(value: Any) -> bool:
    """Whether `restored` changes the object that is present, and cannot make one."""
    kinds = (deque, defaultdict, Enum, torch.Generator, np.random.Generator, np.random.RandomState)
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")
    return isinstance(value, (*kinds, random.Random)) or is_named or has_state(value)


def plain(value: Any, take: Take) -> Any:
    """A value as plain data.

    Raises:
        OtherError: it cannot be saved, or only its parts.
    """

    def within(part: Any) -> Any:
        return plain(part, take)

    kind = type(value)
    if is_plain(value):
        return value
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return take(value)
    if kind in (list, tuple):
        return kind(map(within, value))
    if kind is dict and all(type(key) in PLAIN for key in value):
        return {key: within(part) for key, part in value.items()}
    if kind is torch.Size:
        return tuple(value)
    for name, (form, content_of, _) in FORMS.items():
        if kind is form or (form not in EXACT and isinstance(value, form)):
            return {KIND: name, "value": within(content_of(value))}
    if has_state(value) and not isinstance(value, torch.nn.Module):
        return {KIND: "state_dict", "value": within(value.state_dict())}
    raise OtherError


def restored(saved: Any, present: Any, device: torch.device) -> Any:
    """The value that `plain` gave; where it can be, the object that is present is changed.

    Args:
        device: of tensors that were not in main memory.
    """

    def within(part: Any, other: Any = None) -> Any:
        return restored(part, other, device)

    kind = type(saved)
    if kind in (list, tuple):
        fits = type(present) is kind and len(present) == len(saved)
        items = [*map(within, saved, present if fits else len(saved) * [None])]
        if kind is tuple or type(present) is not list:
            return kind(items)
        present[:] = items
        return present
    if kind is not dict:
        return saved
    if KIND not in saved:
        here = present if type(present) is dict else {}
        return _refilled(here, {key: within(part, here.get(key)) for key, part in saved.items()})
    name, value = saved[KIND], saved["value"]
    if name == "tensor":
        return value.to(device) if saved["moved"] else value.clone()
    if name in ("array", "number"):
        return value.numpy().copy() if name == "array" else value.numpy()[()]
    if name == "state_dict":
        present.load_state_dict(within(value))
        return present
    *_, made = FORMS[name]
    return made(present, within(value))


# Copies and digests of tensors and arrays


def is_usual(tensor: Any) -> bool:
    """Whether it is a tensor of torch's own class, with all its numbers in this process."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def copied(value: Any) -> Any:
    """A copy in main memory.

    Raises:
        OtherError: it is a shard, say, or holds no numbers.
    """
    is_tensor = isinstance(value, torch.Tensor)
    if not is_usual(value) if is_tensor else value.dtype.kind not in "biufc":
        raise OtherError
    name = "tensor" if is_tensor else "array" if isinstance(value, np.ndarray) else "number"
    tensor = value.detach() if is_tensor else torch.tensor(value.copy())
    moved = tensor.device.type != "cpu"
    return {KIND: name, "value": tensor.to("cpu", copy=True), "moved": moved}


def content(value: Any) -> Any:
    """The shape of a tensor or an array, and digests that differ when its numbers do."""
    if isinstance(value, np.memmap):
        return ends(value)
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value.copy())
    if tensor.layout != torch.strided:
        return tensor._version
    step = -(-tensor.numel() // HASHED) or 1
    total = checksums([tensor]) if step > 1 else []
    return tuple(tensor.shape), total, digest(tensor.flatten()[::step])


def ends(value: Any) -> Any:
    """The same of one that may be large, or a file: only its ends are read."""
    is_tensor = isinstance(value, torch.Tensor)
    is_whole = value.is_contiguous() if is_tensor else value.flags.c_contiguous
    flat = value.reshape(-1) if is_whole else value[:1]
    parts = [part if is_tensor else torch.tensor(part.copy()) for part in (flat[:END], flat[-END:])]
    return tuple(value.shape), digest(parts)


def mark(value: Any, take: Take) -> Any:
    """A hash of what can be saved; None for a part to enter."""
    if isinstance(value, COMPARED):
        return repr(value).encode()
    try:
        return hashed(plain(value, take))
    except Exception:  # of any class: these objects are the user's
        return None


def hashed(value: Any) -> bytes:
    """A hash of plain values; of short ones, the values as bytes."""
    text = marshal.dumps(value, 2)  # later versions depend on references
    return text if len(text) < 64 else blake2b(text, digest_size=16).digest()
