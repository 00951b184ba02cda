"""Reductions over the ranks, by the one operation that every backend has."""

import torch
import torch.distributed
from torch import Tensor

from smlightning.cluster.session import current_cluster


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of ``tensor`` over all ranks, on its own device.

    It is ``tensor`` itself where there is no process group. A sum is the one reduction that every
    backend has: SMDDP refuses the rest (Lightning#20409).
    """
    if not torch.distributed.is_initialized():
        return tensor
    total = tensor.detach().clone().to(current_cluster().device)
    torch.distributed.all_reduce(total)
    return total.to(tensor.device)


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank. Collective: every rank has to call it."""
    return bool(all_sum(torch.tensor(int(flag))) > 0)


def sum_over_ranks(state: Tensor, group: object = None) -> list[Tensor]:
    """``dist_sync_fn`` for a torchmetrics metric whose states are sums: one all-reduce."""
    return [all_sum(state)]
