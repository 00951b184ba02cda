"""What two tensors are compared by that do not lie in one place; states of tensors."""

from collections.abc import Iterable
from typing import Any

import torch

PIECE = 2**22  # numbers that are added up at a time


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
        total += piece.sum(dtype=torch.int64)  # of which it makes a copy in int64
    return int(total) % 2**61


def remade(sequence: list | tuple, items: Iterable[Any]) -> Any:
    """Items as a list or a tuple of the sequence's own kind. A NamedTuple becomes a plain one: a
    checkpoint holds no classes.
    """
    return tuple(items) if hasattr(sequence, "_fields") else type(sequence)(items)
