"""The one rule for what a checkpoint holds: any object as plain data, and back; hashes of it.

torch.load reads numbers, text, tensors and their collections without pickle's code. Arrays, numpy's
scalars, other collections, random generators, dates, members of an Enum and NamedTuples become
such data. A class is stored by its name and looked up among those that are loaded: reading a
checkpoint imports nothing and calls no code of a class that a checkpoint chooses. Objects with the
methods ``state_dict`` and ``load_state_dict`` need the object that is present.
"""

import copy
import marshal
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from smlightning.errors import UserError
from smlightning.parts import PLAIN, is_plain
from smlightning.tensors import checksums, digest, transform

KIND = "kind of object"  # the key of a mapping that stands for an object of another class
LEFT_OUT = "left out"  # the key of the places that `encoded` left out
# torch.load(weights_only=True) reads these (torch 2.5.1 and 2.13: _weights_only_unpickler.py).
READ = (*PLAIN, bytearray, torch.dtype, torch.device, torch.Size)
MAPPINGS = (dict, OrderedDict, Counter)
NEEDED = ("state_dict", "optimizer_states")  # a resumed run cannot make a part of these
FACTORIES = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)}
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
CPU = torch.device("cpu")
HASHED = 2**20  # numbers of a tensor; of a larger one so many and the sum are compared
END = 2**16  # numbers at each end of a tensor, where only these are read

Take = Callable[[Any], Any]  # its result stands for a tensor or an array
Place = tuple[Any, ...]  # keys and numbers that lead to a value


class OtherError(TypeError):
    """A value that is not saved."""


def _sorted(items: Any) -> list[Any]:
    return sorted(items, key=repr)


def _refilled(present: Any, items: Any) -> Any:
    """The collection that is present, with other items."""
    present.clear()
    (present.update if isinstance(present, dict) else present.extend)(items)
    return present


def _deque(present: Any, content: Any) -> Any:
    longest, items = content
    return _refilled(present if type(present) is deque else deque(maxlen=longest), items)


def _defaultdict(present: Any, content: Any) -> Any:
    factory, items = content
    if type(present) is not defaultdict:
        present = defaultdict(FACTORIES[factory] if factory else None)
    return _refilled(present, dict(items))


def _factory(each: Any) -> str | None:
    return each.default_factory and each.default_factory.__name__


def _names(value: Any) -> list[str]:
    return [type(value).__module__, type(value).__qualname__]


def _class(present: Any, names: list[str]) -> Any:
    """The class of these names, if it is loaded."""
    if _names(present) == names:
        return type(present)
    module, qualname = names
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = vars(found)[name]
    return found


def _member(present: Any, content: Any) -> Any:
    *names, member = content
    found = _class(present, names)
    if not issubclass(found, Enum):
        raise OtherError
    return found.__members__[member]


def _named_tuple(present: Any, content: Any) -> Any:
    *names, items = content
    found = _class(present, names)
    if not issubclass(found, tuple) or len(found._fields) != len(items):
        raise OtherError
    return tuple.__new__(found, items)


def _set(name: str, make: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    """Calls the method of the object that is present, or of a new one, with the saved state."""

    def set_state(present: Any, state: Any) -> Any:
        found = make() if present is None else present
        getattr(found, name)(state)
        return found

    return set_state


def _torch_generator(present: Any, content: Any) -> Any:
    device, state = content
    return _set("set_state", lambda: torch.Generator(device))(present, state)


def _numpy_generator(present: Any, state: Any) -> Any:
    if present is None and state["bit_generator"] in BIT_GENERATORS:
        present = np.random.Generator(getattr(np.random, state["bit_generator"])())
    present.bit_generator.state = state
    return present


def _moment(each: datetime) -> str:
    if type(each.tzinfo) not in (type(None), timezone):
        raise OtherError
    return each.isoformat()


# Class, plain content, and an object from the one that is present, or None, and this content.
FORMS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "set": (set, _sorted, lambda _, items: set(items)),
    "frozenset": (frozenset, _sorted, lambda _, items: frozenset(items)),
    "deque": (deque, lambda each: [each.maxlen, list(each)], _deque),
    "defaultdict": (defaultdict, lambda each: [_factory(each), dict(each)], _defaultdict),
    "OrderedDict": (OrderedDict, dict, lambda _, items: OrderedDict(items)),
    "Counter": (Counter, dict, lambda _, items: Counter(items)),
    "dict": (dict, lambda each: [*map(list, each.items())], lambda _, pairs: dict(pairs)),
    "member": (Enum, lambda each: [*_names(each), each.name], _member),
    "NamedTuple": (tuple, lambda each: [*_names(each), list(each)], _named_tuple),
    "datetime": (datetime, _moment, lambda _, text: datetime.fromisoformat(text)),
    "date": (date, date.isoformat, lambda _, text: date.fromisoformat(text)),
    "timedelta": (
        timedelta,
        lambda each: [each.days, each.seconds, each.microseconds],
        lambda _, numbers: timedelta(*numbers),
    ),
    "Decimal": (Decimal, str, lambda _, text: Decimal(text)),
    "path": (
        PurePath,
        lambda each: [isinstance(each, Path), str(each)],
        lambda _, content: (Path if content[0] else PurePath)(content[1]),
    ),
    "range": (
        range, lambda each: [each.start, each.stop, each.step], lambda _, ends: range(*ends)
    ),
    "slice": (
        slice, lambda each: [each.start, each.stop, each.step], lambda _, ends: slice(*ends)
    ),
    "torch generator": (
        torch.Generator, lambda each: [str(each.device), each.get_state()], _torch_generator
    ),
    "numpy generator": (
        np.random.Generator, lambda each: each.bit_generator.state, _numpy_generator
    ),
    "RandomState": (
        np.random.RandomState,
        lambda each: each.get_state(legacy=False),
        _set("set_state", np.random.RandomState),
    ),
    "Random": (random.Random, random.Random.getstate, _set("setstate", random.Random)),
}  # fmt: skip
DERIVED = (Enum, tuple, PurePath, torch.Generator, random.Random)  # and classes that derive


def has_state(part: Any) -> bool:
    """Whether its class has the two methods of a state; those of Lightning's bases return none."""
    kind = type(part)
    own = getattr(getattr(kind, "state_dict", None), "__qualname__", "")
    is_base = own in ("Callback.state_dict", "LightningDataModule.state_dict")
    return bool(own) and not is_base and callable(getattr(kind, "load_state_dict", None))


def plain(value: Any, take: Take) -> Any:
    """A value as plain data.

    Raises:
        OtherError: it cannot be saved, or only its parts.
    """

    def within(part: Any) -> Any:
        return plain(part, take)

    kind = type(value)
    if kind is torch.Size:
        return tuple(value)
    if kind in READ or is_plain(value):
        return value
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return take(value)
    if kind in (list, tuple):
        return kind(map(within, value))
    if kind is dict and all(type(key) in PLAIN for key in value):
        return {key: within(part) for key, part in value.items()}
    for name, (form, content_of, _) in FORMS.items():
        if kind is form or (form in DERIVED and isinstance(value, form)):
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
    form, _, made = FORMS[name]
    return made(present if isinstance(present, form) else None, within(value))


def _as_it_is(value: Any) -> Any:
    """A tensor as torch's own class; a copy of what is no tensor."""
    if is_of_others(value):
        return torch.Tensor.as_subclass(value.detach(), torch.Tensor)
    return value if isinstance(value, torch.Tensor) else copied(value)


def needs_present(value: Any) -> bool:
    """Whether `restored` cannot make the value without the object that is present."""
    try:
        restored(plain(value, _as_it_is), None, CPU)
    except Exception:  # of any class: these objects are the user's
        return True
    return False


# A whole state


def encoded(state: Any) -> tuple[Any, dict[Place, str]]:
    """A copy of a state in which every value is plain data or a tensor.

    Tensors stay the same objects. Those of a library's own class, as MONAI's MetaTensor, become
    torch's: torch.load may reject their other attributes, and with them the checkpoint. What is of
    another class is left out of the nearest mapping.

    Returns:
        The copy, and the place and class of what is left out.

    Raises:
        UserError: it would be left out of weights or of an optimizer's state.
    """
    allowed = (*READ, *torch.serialization.get_safe_globals())
    left_out: dict[Place, str] = {}

    def within(value: Any, place: Place) -> Any:
        kind: Any = type(value)
        if isinstance(value, torch.Tensor):
            return _as_it_is(value)
        if kind in allowed or is_plain(value):
            return value
        if kind in MAPPINGS and all(type(key) in PLAIN for key in value):
            changed = copy.copy(value)  # of a model's state with its _metadata
            for key, part in value.items():
                try:
                    changed[key] = within(part, (*place, key))
                except OtherError as error:
                    del changed[key]
                    left_out[(*place, key)] = str(error)
            return changed
        if kind in (list, tuple):
            return kind(within(part, (*place, number)) for number, part in enumerate(value))
        if kind is set and all(type(each) in allowed for each in value):
            return value
        if needs_present(value):
            raise OtherError(kind.__name__)
        return plain(value, _as_it_is)

    found = within(state, ())
    for place, kind in left_out.items():
        if place[0] in NEEDED:
            raise UserError(
                f"{text(place)} is a {kind}; expected plain values and tensors, since a resumed "
                "run needs it",
                "use numbers, text, collections, arrays or tensors there",
            )
    return found, left_out


def decoded(state: Any) -> Any:
    """The state that `encoded` got, without what it left out."""

    def found(value: Any, _: str) -> Any:
        is_form = type(value) is dict and KIND in value
        return restored(value, None, CPU) if is_form else value

    return transform(state, found)


def complete(state: Any, present: Any, places: list[Place]) -> None:
    """Set in a state what was left out at these places, as it is in the present one."""
    for *parents, last in places:
        with suppress(LookupError, TypeError):  # the present state lacks it, too
            here, there = state, present
            for key in parents:
                here, there = here[key], there[key]
            here[last] = there[last]


def text(place: Place) -> str:
    """A place for a message."""
    return ".".join(map(str, place))


# Copies and digests of tensors and arrays


def is_of_others(value: Any) -> bool:
    """Whether its class is a library's tensor, as MONAI's MetaTensor, which holds the numbers."""
    wraps = hasattr(value, "__tensor_flatten__")  # its numbers lie in other tensors
    name = type(value).__module__
    return isinstance(value, torch.Tensor) and not wraps and name.partition(".")[0] != "torch"


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
    if isinstance(value, torch.dtype | torch.device):
        return repr(value).encode()
    try:
        return hashed(plain(value, take))
    except Exception:  # of any class: these objects are the user's
        return None


def hashed(value: Any) -> bytes:
    """A hash of plain values; of short ones, the values as bytes."""
    text = marshal.dumps(value, 2)  # later versions depend on references
    return text if len(text) < 64 else blake2b(text, digest_size=16).digest()
