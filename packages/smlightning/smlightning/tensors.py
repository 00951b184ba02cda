"""Checksums of tensors and batches, samples of a batch, and nested states of tensors.

Imports only torch: the processes of a rehearsal, which may lack this package, get a copy.
"""

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import itemgetter
from types import MemberDescriptorType, ModuleType
from typing import Any

import torch

CHUNK = 2**22  # numbers added up at a time
PART = 1024  # numbers of a tensor whose checksum stands for all
LEAVES = torch.Tensor | str | bytes | int | float | range


def checksums(tensors: Iterable[torch.Tensor]) -> list[int]:
    """61 bits of the sum of each tensor's numbers, as integers of their bits.

    It waits once for the device of all tensors.
    """
    sums = [_sum_of_bits(tensor) for tensor in tensors]
    devices = {total.device for total in sums}
    if len(devices) == 1:
        sums = list(torch.stack(sums).cpu())
    return [int(total) % 2**61 for total in sums]


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.contiguous().reshape(-1)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for chunk in flat.view(integers[flat.element_size()]).split(CHUNK):
        total += chunk.sum(dtype=torch.int64)  # copies the chunk in int64
    return total


def checksums_of_parts(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Checksums of the first numbers of each tensor, of a sharded one of this rank's shard.

    They take little time, and differ after an update or an exchange of all weights.
    """
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return checksums(tensor.detach().flatten()[:PART] for tensor in local)


def leaves(item: Any) -> Iterator[Any]:
    """The tensors, numbers and strings in a batch of any form."""
    return (each for each in objects(item, _parts) if isinstance(each, LEAVES))


def objects(item: Any, parts: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """An object and all objects in it, in order; each collection once, so that a cycle ends."""
    seen: dict[int, Any] = {}  # keeps them, so that no id is used again
    stack = [item]
    while stack:
        each = stack.pop()
        if isinstance(each, LEAVES):
            yield each
        elif id(each) not in seen:
            seen[id(each)] = each
            yield each
            stack.extend(reversed([*parts(each)]))


def _parts(item: Any) -> Iterable[Any]:
    """Items of a collection, attributes of an object, or an array as a tensor; a leaf has none.

    TensorDict and BatchEncoding are mappings.
    """
    if isinstance(item, LEAVES | type | ModuleType):
        return ()
    if isinstance(item, Mapping):
        return item.values()
    if isinstance(item, Sequence):
        return item
    if isinstance(item, Set):
        return sorted(item, key=repr)
    if hasattr(type(item), "__array__") or hasattr(type(item), "__array_interface__"):
        return (_from_array(item),)
    return attributes(item)


def _sorted_parts(item: Any) -> Iterable[Any]:
    """As `_parts`; a mapping's in the order of its keys, which differs between processes."""
    if isinstance(item, Mapping):
        pairs = [*item.items()]  # TensorDict itself iterates over its rows
        if all(isinstance(key, str) for key, _ in pairs):
            return [value for _, value in sorted(pairs, key=itemgetter(0))]
    return _parts(item)


def attributes(item: Any) -> list[Any]:
    """The values of an object's attributes, those of ``__slots__`` first."""
    slots = [
        slot
        for kind in reversed(type(item).__mro__)
        if "__slots__" in vars(kind)
        for slot in vars(kind).values()
        if isinstance(slot, MemberDescriptorType)
    ]
    missing = object()  # a slot that was never set
    values = [getattr(item, slot.__name__, missing) for slot in slots]
    named = getattr(item, "__dict__", {})
    return [*(value for value in values if value is not missing), *named.values()]


def _from_array(item: Any) -> Any:
    """A tensor of numpy's, pandas' or Pillow's numbers; a list of other items."""
    import numpy as np

    array = np.array(item, order="C")  # a copy: torch warns of one that cannot be written
    try:
        return torch.from_numpy(array)
    except TypeError:  # texts, dates, objects
        return array.tolist()


def samples_of(batch: Any) -> int:
    """The number of samples in a batch; 0 if no tensor shows it.

    It is the most frequent length of the highest tensors in the batch, and of several such lengths
    the first. Lower tensors may belong to one sample, as its boxes in object detection do; a tensor
    of another length may belong to the whole batch, as weights of classes do. A batch of graphs
    (torch_geometric) has tensors of nodes and edges, and knows how many graphs these are. Lists of
    images and of their targets (torchvision's detection) have an entry for each sample.
    """
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return graphs
    if entries := _entries(batch):
        return len(entries)
    level, seen = [batch], {id(batch): batch}
    while level:
        tensors = [item for item in level if isinstance(item, torch.Tensor) and item.dim()]
        if tensors:
            return Counter(map(len, tensors)).most_common(1)[0][0]
        found = {id(part): part for item in level for part in _parts(item)}
        level = [part for part in found.values() if id(part) not in seen]
        seen |= found
    return 0


def _entries(batch: Any) -> list[Any]:
    """The samples of a batch of equally long lists: one of tensors, one of mappings.

    Empty for any other batch: in lists of only one kind, each item may be a view of all samples.
    """
    parts = list(_parts(batch)) if isinstance(batch, Mapping | list | tuple) else []
    if not parts or not all(isinstance(part, list | tuple) for part in parts):
        return []
    kinds = (Mapping, torch.Tensor)
    if len({*map(len, parts)}) != 1 or not all(_has_list(parts, kind) for kind in kinds):
        return []
    return list(zip(*parts, strict=True))


def _has_list(parts: Sequence[Any], kind: type) -> bool:
    """Whether one of these lists has items of only this class, and at least one."""
    return any(part and all(isinstance(item, kind) for item in part) for part in parts)


def samples(batch: Any) -> list[Any]:
    """The content of each sample: its item of every tensor that has one for each sample.

    Empty if there is no such tensor, or only sparse and nested ones.
    """
    if callable(getattr(batch, "to_data_list", None)):  # torch_geometric's
        return list(batch.to_data_list())
    if entries := _entries(batch):
        return entries
    count = samples_of(batch)
    tensors = [item for item in leaves(batch) if isinstance(item, torch.Tensor) and item.dim()]
    tensors = [item for item in tensors if item.layout == torch.strided and not item.is_nested]
    columns = [tensor for tensor in tensors if len(tensor) == count]
    return [[column[i] for column in columns] for i in range(count)] if columns else []


def digest(batch: Any) -> int:
    """A hash of 48 bits of the content of a batch or a part of it, in any order of its keys.

    Shards are gathered, on all ranks at once.
    """
    content = hashlib.blake2b(digest_size=6)
    for item in objects(batch, _sorted_parts):
        if not isinstance(item, LEAVES):
            continue
        if not isinstance(item, torch.Tensor):
            content.update(repr(item).encode())
            continue
        for part in _strided(item):
            whole = part.full_tensor() if hasattr(part, "full_tensor") else part
            tensor = whole.detach().cpu()
            content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(content.digest(), "big")


def _strided(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The ordinary tensors that a nested or a sparse one is made of."""
    if tensor.is_nested:
        return tensor.unbind()
    if tensor.layout == torch.strided:
        return (tensor,)
    sparse = tensor.detach().to_sparse_coo().coalesce()
    return sparse.indices(), sparse.values()


def transform(state: Any, change: Callable[[Any, str], Any], place: str = "") -> Any:
    """A copy of nested mappings, lists and tuples, with values replaced.

    A mapping and a NamedTuple keep their classes, and a state_dict its ``_metadata``.

    Args:
        change: returns the value for ``(value, place)``, or the same one to go on inside it.
        place: of ``state``: keys and numbers, each after a slash.
    """
    changed = change(state, place)
    if changed is not state:
        return changed
    if isinstance(state, Mapping):
        copied: Any = copy.copy(state)
        for key, value in state.items():
            copied[key] = transform(value, change, f"{place}/{key}")
        return copied
    if isinstance(state, list | tuple):
        items = [transform(item, change, f"{place}/{n}") for n, item in enumerate(state)]
        kind: Any = type(state)
        return tuple.__new__(kind, items) if hasattr(state, "_fields") else kind(items)
    return state
