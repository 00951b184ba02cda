"""Copies of a training state, whole or sharded among the ranks by FSDP2.

FSDP2 divides each tensor by its first dimension: a rank has a range of rows, its shard. In a state
outside the model a sharded tensor has one form, plain data: its shape, and the rows that are known,
by the number of the first one. In a checkpoint it has no rows; each rank's are in a file.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smlightning.tensors import transform

SHAPE, ROWS = "shape of a divided tensor", "rows"  # keys of the plain form, in checkpoints, too
Shard = dict[str, dict[int, torch.Tensor]]  # a rank's rows, by the tensor's place in the state

UNCHANGED = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def snapshot(state: Any, memory: dict[str, torch.Tensor]) -> Any:
    """A copy in main memory that training does not change.

    New memory costs many times as much as the copy: the system has to clear each page. With a GPU
    the memory is pinned and the copy asynchronous: it is complete when the current stream is. Torch
    makes each pinned block a power of two, up to twice the tensor's bytes.

    Training's own stream copies. Another stream would hide the copy, 0.5 s for a billion parameters
    at 22 GB/s, but a forward pass changes buffers and a callback may change weights meanwhile.

    Args:
        state: tensors and plain values in any nesting of mappings, lists and tuples.
        memory: an earlier copy's tensors by place, used again where they fit; updated in place.
    """

    def copied(value: Any, place: str) -> Any:
        if isinstance(value, torch.Tensor):
            kept = memory.get(place)
            if kept is None or not _fits(kept, value):
                kept = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
                memory[place] = kept
            return kept.copy_(value.detach(), non_blocking=True)
        if type(value) in UNCHANGED or isinstance(value, Mapping | list | tuple):
            return value
        return copy.deepcopy(value)

    return transform(state, copied)


def _fits(memory: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a copy of ``value`` can go there; from a GPU only into pinned memory."""
    is_alike = (memory.shape, memory.dtype) == (value.shape, value.dtype)
    return is_alike and (memory.is_pinned() or not value.is_cuda)


def split(state: Any) -> tuple[Any, Shard]:
    """The state with the plain form of each sharded tensor, and this rank's rows of them."""
    shard: Shard = {}

    def mark(value: Any, place: str) -> Any:
        if not _is_dtensor(value):
            return value
        shard[place] = {_first_row(value): value.to_local().detach()}
        return {SHAPE: list(value.shape), ROWS: {}}

    return transform(state, mark), shard


def join(state: Any, shards: Sequence[Shard]) -> Any:
    """The state with these rows in each sharded tensor."""

    def joined(value: Any, place: str) -> Any:
        if not is_sharded(value):
            return value
        rows = {first: part for shard in shards for first, part in shard[place].items()}
        return {**value, ROWS: rows}

    return transform(state, joined)


def whole(state: Any) -> Any:
    """The state with whole tensors, in main memory."""
    return transform(state, lambda v, _: rows_of(v, 0, v[SHAPE][0]) if is_sharded(v) else v)


def is_sharded(value: Any) -> bool:
    """Whether it is the plain form of a sharded tensor."""
    return isinstance(value, Mapping) and SHAPE in value


def rows_of(sharded: Mapping[str, Any], start: int, stop: int) -> torch.Tensor:
    """A copy of these rows."""
    parts: dict[int, torch.Tensor] = sharded[ROWS]
    dtype = next(iter(parts.values())).dtype
    rows = torch.empty((stop - start, *sharded[SHAPE][1:]), dtype=dtype)
    for first, part in parts.items():
        low, high = max(start, first), min(stop, first + len(part))
        if low < high:
            rows[low - start : high - start] = part[low - first : high - first]
    return rows


def _is_dtensor(value: Any) -> bool:
    """Whether it is a DTensor, whose module an image's older torch may lack."""
    return isinstance(value, torch.Tensor) and hasattr(value, "to_local")


def _first_row(tensor: Any) -> int:
    """The number of this rank's first row of a DTensor.

    FSDP2 divides as `torch.chunk` does: equal shards, rounded up; the last ranks have fewer rows or
    none. If the mesh has two dimensions, the first is that of the replicas.
    """
    mesh = tensor.device_mesh
    size = -(-tensor.shape[0] // mesh.size(mesh.ndim - 1))
    return min(mesh.get_local_rank(mesh.ndim - 1) * size, tensor.shape[0])


def weights_like(weights: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Weights, each sharded as the one of the same name in ``present`` is."""
    return {name: sharded_like(value, present.get(name)) for name, value in weights.items()}


def has_shape(value: Any, shape: Sequence[int]) -> bool:
    """Whether it is a tensor, whole or sharded, of this shape."""
    own = value[SHAPE] if is_sharded(value) else getattr(value, "shape", None)
    return own is not None and list(own) == list(shape)


def sharded_like(value: Any, like: Any) -> Any:
    """``value``, a tensor that is whole or in the plain form, sharded as ``like`` is.

    If ``like`` is no DTensor, a whole tensor; if the shapes differ, an empty one, for torch to
    report.
    """
    if not isinstance(value, torch.Tensor) and not is_sharded(value):
        return value
    if not _is_dtensor(like):
        return whole(value) if is_sharded(value) else value.clone()
    if not has_shape(value, like.shape):
        return torch.empty(value[SHAPE] if is_sharded(value) else value.shape, device="meta")
    from torch.distributed.tensor import DTensor

    start = _first_row(like)
    stop = start + len(like.to_local())
    rows = rows_of(value, start, stop) if is_sharded(value) else value[start:stop].clone()
    return DTensor.from_local(
        rows.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
