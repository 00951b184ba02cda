"""Checksums of tensors and batches, and nested states of tensors.

Imports only torch: the processes of a rehearsal, which may lack this package, get a copy.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

CHUNK = 2**22  # numbers added up at a time
PART = 1024  # numbers of a tensor whose checksum stands for all


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
    """Checksums of the first numbers of each tensor, of a divided one of this rank's shard.

    They take little time, and differ after an update or an exchange of all weights.
    """
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return checksums(tensor.detach().flatten()[:PART] for tensor in local)


def leaves(item: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors, numbers and strings in a batch, up to ten levels deep."""
    if isinstance(item, torch.Tensor | str | bytes | int | float):
        yield item
        return
    if depth == 10:
        return
    parts = item if isinstance(item, Mapping | list | tuple) else getattr(item, "__dict__", ())
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        yield from leaves(part, depth + 1)


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

    A mapping keeps its class, and a state_dict its ``_metadata``. A NamedTuple becomes a plain
    tuple: a checkpoint holds no classes.

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
        return tuple(items) if hasattr(state, "_fields") else type(state)(items)
    return state
