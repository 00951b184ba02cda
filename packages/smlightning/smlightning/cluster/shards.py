"""States whose tensors FSDP2 has divided among the ranks: split for files, and joined again.

FSDP2 divides each tensor by its first dimension: a rank has a range of rows, its shard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from smlightning.tensors import transform

DIVIDED = "divided tensor"  # the key of the mark that replaces one in a split state


class Shard(TypedDict):
    """One rank's rows of a state's divided tensors, by the tensors' places in the state."""

    starts: dict[str, int]  # the number of the first row
    rows: dict[str, torch.Tensor]


@dataclass(frozen=True)
class DividedTensor:
    """A tensor whose rows lie in several shards."""

    shape: tuple[int, ...]
    shards: tuple[tuple[int, torch.Tensor], ...]  # the number of the first row, and the rows

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """A copy of these rows."""
        dtype = self.shards[0][1].dtype
        rows = torch.empty((stop - start, *self.shape[1:]), dtype=dtype)
        for first, shard in self.shards:
            low, high = max(start, first), min(stop, first + len(shard))
            if low < high:
                rows[low - start : high - start] = shard[low - first : high - first]
        return rows

    def whole(self) -> torch.Tensor:
        """All rows, in main memory."""
        return self.rows(0, self.shape[0])


def split(state: Any) -> tuple[Any, Shard]:
    """The state with a mark in place of each divided tensor, and this rank's rows of them."""
    shard = Shard(starts={}, rows={})

    def mark(value: Any, place: str) -> Any:
        if not _is_divided(value):
            return value
        shard["starts"][place] = _first_row(value)
        shard["rows"][place] = value.to_local().detach()
        return {DIVIDED: place, "shape": list(value.shape)}

    return transform(state, mark), shard


def join(state: Any, shards: Sequence[Shard]) -> Any:
    """The state with a `DividedTensor` of these shards in place of each mark."""

    def joined(value: Any, _: str) -> Any:
        if not isinstance(value, Mapping) or DIVIDED not in value:
            return value
        place = value[DIVIDED]
        rows = tuple((shard["starts"][place], shard["rows"][place]) for shard in shards)
        return DividedTensor(tuple(value["shape"]), rows)

    return transform(state, joined)


def whole(state: Any) -> Any:
    """The state with a tensor in main memory in place of each `DividedTensor`."""
    return transform(state, lambda v, _: v.whole() if isinstance(v, DividedTensor) else v)


def _is_divided(value: Any) -> bool:
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
    """Weights, each divided as the one of the same name in ``present`` is."""
    return {name: divided_like(value, present.get(name)) for name, value in weights.items()}


def divided_like(value: Any, like: Any) -> Any:
    """``value``, a tensor or a `DividedTensor`, divided as ``like`` is.

    If ``like`` is no DTensor, a whole tensor; if the shapes differ, an empty one, for torch to
    report.
    """
    if not isinstance(value, torch.Tensor | DividedTensor):
        return value
    if not _is_divided(like):
        return value.whole() if isinstance(value, DividedTensor) else value.clone()
    if tuple(value.shape) != tuple(like.shape):
        return torch.empty(value.shape, device="meta")
    from torch.distributed.tensor import DTensor

    start = _first_row(like)
    stop = start + len(like.to_local())
    rows = (
        value.rows(start, stop) if isinstance(value, DividedTensor) else value[start:stop].clone()
    )
    return DTensor.from_local(
        rows.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
