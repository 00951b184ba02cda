"""Checksums of tensors and batches, samples of a batch, and nested states of tensors.

Imports only torch: the processes of a rehearsal, which may lack this package, get a copy.
"""

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

CHUNK = 2**22  # numbers added up at a time
PART = 1024  # numbers of a tensor whose checksum stands for all
DEPTH = 10  # levels of a batch
LEAVES = torch.Tensor | str | bytes | int | float


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


def leaves(item: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors, numbers and strings in a batch, up to ten levels deep."""
    if isinstance(item, LEAVES):
        yield item
    elif depth < DEPTH:
        for part in _parts(item):
            yield from leaves(part, depth + 1)


def _parts(item: Any) -> Iterable[Any]:
    """The items of a collection, or an object's attributes; none of a leaf."""
    if isinstance(item, LEAVES):
        return ()
    parts = item if isinstance(item, Mapping | list | tuple) else getattr(item, "__dict__", ())
    return parts.values() if isinstance(parts, Mapping) else parts


def samples_of(batch: Any) -> int:
    """The number of samples in a batch; 0 if no tensor shows it.

    It is the most frequent length of the highest tensors in the batch, and of several such lengths
    the first. Lower tensors may belong to one sample, as its boxes in object detection do; a tensor
    of another length may belong to the whole batch, as weights of classes do. A batch of graphs
    (torch_geometric) has tensors of nodes and edges, and knows how many graphs these are.
    """
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return graphs
    level = [batch]
    for _ in range(DEPTH):
        tensors = [item for item in level if isinstance(item, torch.Tensor) and item.dim()]
        if tensors:
            return Counter(map(len, tensors)).most_common(1)[0][0]
        level = [part for item in level for part in _parts(item)]
    return 0


def samples(batch: Any) -> list[Any]:
    """The content of each sample: its item of every tensor that has one for each sample.

    Empty if there is no such tensor, or only sparse and nested ones.
    """
    if callable(getattr(batch, "to_data_list", None)):  # torch_geometric's
        return list(batch.to_data_list())
    count = samples_of(batch)
    tensors = [item for item in leaves(batch) if isinstance(item, torch.Tensor) and item.dim()]
    tensors = [item for item in tensors if item.layout == torch.strided and not item.is_nested]
    columns = [tensor for tensor in tensors if len(tensor) == count]
    return [[column[i] for column in columns] for i in range(count)] if columns else []


def digest(batch: Any) -> int:
    """A hash of 48 bits of the content of a batch or a part of it.

    Shards are gathered, on all ranks at once.
    """
    content = hashlib.blake2b(digest_size=6)
    for item in leaves(batch):
        if isinstance(item, torch.Tensor) and item.layout == torch.strided and not item.is_nested:
            whole = item.full_tensor() if hasattr(item, "full_tensor") else item
            tensor = whole.detach().cpu()
            content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            content.update(repr(item).encode())
    return int.from_bytes(content.digest(), "big")


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
