"""Reductions over the ranks, by the only operation that every backend has."""

import base64
from collections.abc import Sequence

import torch
import torch.distributed
from torch import Tensor

from smlightning.cluster import exchange
from smlightning.cluster.session import current_cluster

CHUNK = 2**22  # characters that a rank sends to rank 0 at once
# Types that NCCL does not know (ProcessGroupNCCL, ``ncclDataType``), and the ones to sum instead.
WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32}


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of ``tensor`` over all ranks, on its own device.

    Without a process group it is ``tensor`` itself. A sum is the only reduction that every backend
    has: SMDDP rejects the rest (Lightning#20409).
    """
    if not torch.distributed.is_initialized():
        return tensor
    dtype = WIDER.get(tensor.dtype, tensor.dtype)
    total = tensor.detach().to(current_cluster().device, dtype, copy=True).contiguous()
    torch.distributed.all_reduce(total)
    return total.to(tensor.device, tensor.dtype)


def of_rank_0(tensor: Tensor) -> Tensor:
    """Rank 0's tensor on every rank, by a sum with the others' zeros. Collective."""
    is_first = current_cluster().rank == 0
    return all_sum(tensor if is_first else torch.zeros_like(tensor))


def differ(numbers: Sequence[int], shards: int = 1) -> bool:
    """Whether whole numbers differ between ranks. Collective: every rank passes equally many.

    It sends equally much for any number of ranks; `from_each_rank` sends more for more ranks.

    Args:
        shards: rank r is compared with rank r % shards, which holds the same shard.
    """
    mine, rank = torch.tensor(numbers, dtype=torch.int64), current_cluster().rank
    first = mine.new_zeros(shards, len(mine))
    if rank < shards:
        first[rank] = mine
    return any_rank(not torch.equal(mine, all_sum(first)[rank % shards]))


def from_each_rank(numbers: Tensor) -> Tensor:
    """(n,) numbers of this rank → (ranks, n) numbers of each. Collective.

    Each rank gets as many as there are ranks: use it once `differ` says so.
    """
    cluster = current_cluster()
    slots = numbers.new_zeros(cluster.world_size, len(numbers))
    slots[cluster.rank] = numbers
    return all_sum(slots)  # a slot for each rank: SMDDP has only sums


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank. Collective."""
    return bool(all_sum(torch.tensor(int(flag))) > 0)


def bytes_to_rank_0(name: str, content: bytes) -> list[bytes]:
    """On rank 0 the bytes of each rank, by rank; on the others nothing. Collective.

    Args:
        name: for errors.
    """
    text = base64.b64encode(content).decode()
    chunks = []  # for each, those of all ranks
    while any_rank(bool(text)):
        chunks.append(exchange.to_rank_0(name, text[:CHUNK]))
        text = text[CHUNK:]
    return [base64.b64decode("".join(parts)) for parts in zip(*chunks, strict=True)]


def sum_over_ranks(state: Tensor, group: object = None) -> list[Tensor]:
    """``dist_sync_fn`` for a torchmetrics metric whose states are sums: one all-reduce.

    It is wrong for states that are lists, means or maxima, and training rejects it there
    (training/metrics.py).
    """
    return [all_sum(state)]
