"""Tensors that lie on the ranks in parts: a state is taken apart for its files, and joined again.

FSDP2 divides each tensor by its first dimension; a rank has the rows from one number to another.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from smlightning.tensors import remade

DIVIDED = "divided tensor"  # the key of what stands for one in a state that was taken apart


class Shard(TypedDict):
    """What one rank has of a state's divided tensors, by their places in the state."""

    starts: dict[str, int]  # the number of its first row
    rows: dict[str, torch.Tensor]


@dataclass(frozen=True)
class DividedTensor:
    """A tensor whose rows lie in several shards."""

    shape: tuple[int, ...]
    parts: tuple[tuple[int, torch.Tensor], ...]  # the number of the first row, and the rows

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """A copy of these rows."""
        dtype = self.parts[0][1].dtype
        rows = torch.empty((stop - start, *self.shape[1:]), dtype=dtype)
        for first, part in self.parts:
            low, high = max(start, first), min(stop, first + len(part))
            if low < high:
                rows[low - start : high - start] = part[low - first : high - first]
        return rows

    def whole(self) -> torch.Tensor:
        """All rows, in main memory."""
        return self.rows(0, self.shape[0])


def split(state: Any) -> tuple[Any, Shard]:
    """The state with a mark in place of each divided tensor, and this rank's rows of those."""
    shard = Shard(starts={}, rows={})
    return _split(state, "", shard), shard


def _split(state: Any, place: str, shard: Shard) -> Any:
    from torch.distributed.tensor import DTensor

    if isinstance(state, DTensor):
        shard["starts"][place] = first_row(state)
        shard["rows"][place] = state.to_local().detach()
        return {DIVIDED: place, "shape": list(state.shape)}
    if isinstance(state, Mapping):
        copied = copy.copy(state)  # keeps the class of a state_dict and what it knows of versions
        for key, value in state.items():
            copied[key] = _split(value, f"{place}/{key}", shard)  # type: ignore[index]
        return copied
    if isinstance(state, list | tuple):
        items = enumerate(state)
        return remade(state, (_split(part, f"{place}/{number}", shard) for number, part in items))
    return state


def join(state: Any, shards: Sequence[Shard]) -> Any:
    """The state with a `DividedTensor` of these shards in place of each mark."""
    if isinstance(state, Mapping) and DIVIDED in state:
        place = state[DIVIDED]
        parts = [(shard["starts"][place], shard["rows"][place]) for shard in shards]
        return DividedTensor(tuple(state["shape"]), tuple(parts))
    if isinstance(state, Mapping):
        copied = copy.copy(state)
        for key, value in state.items():
            copied[key] = join(value, shards)  # type: ignore[index]
        return copied
    if isinstance(state, list | tuple):
        return remade(state, (join(value, shards) for value in state))
    return state


def whole(state: Any) -> Any:
    """The state with a tensor in main memory in place of each `DividedTensor`."""
    if isinstance(state, DividedTensor):
        return state.whole()
    if isinstance(state, Mapping):
        copied = copy.copy(state)
        for key, value in state.items():
            copied[key] = whole(value)  # type: ignore[index]
        return copied
    if isinstance(state, list | tuple):
        return remade(state, map(whole, state))
    return state


def first_row(tensor: Any) -> int:
    """Of a DTensor that FSDP2 divided: the number of this rank's first row.

    It divides as `torch.chunk` does: equal parts, rounded up; the last ranks have fewer, or none.
    Of a mesh's two dimensions the first is that of the replicas.
    """
    mesh = tensor.device_mesh
    size = -(-tensor.shape[0] // mesh.size(mesh.ndim - 1))
    return min(mesh.get_local_rank(mesh.ndim - 1) * size, tensor.shape[0])


def weights_like(weights: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Weights as tensors that are divided as those of the same name in ``present`` are."""
    return {name: divided_like(value, present.get(name)) for name, value in weights.items()}


def divided_like(value: Any, like: Any) -> Any:
    """``value``, a tensor or a `DividedTensor`, as a tensor that is divided as ``like`` is.

    Where ``like`` is no DTensor, it is a whole tensor; where the shapes differ, an empty one, for
    whoever compares them.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(value, torch.Tensor | DividedTensor):
        return value
    if not isinstance(like, DTensor):
        return value.whole() if isinstance(value, DividedTensor) else value.clone()
    if tuple(value.shape) != tuple(like.shape):
        return torch.empty(value.shape, device="meta")
    start = first_row(like)
    stop = start + len(like.to_local())
    if isinstance(value, DividedTensor):
        rows = value.rows(start, stop)
    else:
        rows = value[start:stop].clone()
    return DTensor.from_local(
        rows.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
