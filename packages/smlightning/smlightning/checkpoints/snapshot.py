"""Copies of a training state in main memory, which is used again for the next copy."""

from typing import Any

import torch

from smlightning.tensors import transform


def snapshot(state: Any, memory: dict[str, torch.Tensor]) -> Any:
    """A copy in main memory that training does not change.

    New memory costs many times as much as the copy: the system has to clear each page. With a GPU
    the memory is pinned and the copy asynchronous: it is complete when the current stream is. Torch
    makes each pinned block a power of two, up to twice the tensor's bytes.

    Training's own stream copies. Another stream would hide the copy, 0.5 s for a billion parameters
    at 22 GB/s, but a forward pass changes buffers and a callback may change weights meanwhile.

    Args:
        state: tensors in any nesting of mappings, lists and tuples; other values are not copied.
        memory: an earlier copy's tensors by place, used again where they fit; updated in place.
    """

    def copied(value: Any, place: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kept = memory.get(place)
        if kept is None or (kept.shape, kept.dtype) != (value.shape, value.dtype):
            kept = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            memory[place] = kept
        return kept.copy_(value.detach(), non_blocking=True)

    return transform(state, copied)
