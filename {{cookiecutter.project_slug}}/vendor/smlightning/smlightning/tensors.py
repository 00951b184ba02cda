"""Checksums of tensors, and nested states of tensors."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

PIECE = 2**22  # numbers added up at a time


def checksum(tensor: torch.Tensor) -> int:
    """61 bits of the sum of a tensor's numbers as integers of their bits."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return 0
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.contiguous().reshape(-1)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for piece in flat.view(integers[flat.element_size()]).split(PIECE):
        total += piece.sum(dtype=torch.int64)  # copies the piece in int64
    return int(total) % 2**61


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
