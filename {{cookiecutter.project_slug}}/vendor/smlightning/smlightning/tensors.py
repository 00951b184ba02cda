"""Checksums of tensors, to compare them between ranks; states of tensors."""

from collections.abc import Iterable
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


def remade(sequence: list | tuple, items: Iterable[Any]) -> Any:
    """The items as a list or tuple of the sequence's type. A NamedTuple becomes a plain tuple: a
    checkpoint holds no classes.
    """
    return tuple(items) if hasattr(sequence, "_fields") else type(sequence)(items)
