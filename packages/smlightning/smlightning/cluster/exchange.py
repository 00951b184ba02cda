"""Ranks exchange plain values without a process group.

Only rank 0 reads a value of every rank; it then writes one answer, which all read.
"""

import math
import time
from collections.abc import Callable, Collection
from typing import Any

import torch.distributed

from smlightning.cluster import ending
from smlightning.cluster.location import Cluster, ClusterError
from smlightning.cluster.store import Ranks, RankStore


def from_rank_0(name: str, compute: Callable[[], Any], seconds: float = math.inf) -> Any:
    """Call ``compute`` on rank 0, and return its plain values on every rank. Waits for rank 0.

    Args:
        name: for errors.
        seconds: to wait at most, as in `wait_for_ranks`.
    """
    ranks = ending.ranks()
    if ranks is None or ranks.store is None:
        return compute()
    key = _next_key(ranks, name)
    if ranks.cluster.rank != 0:
        return wait_for_ranks(ranks.store, key, [0], ranks.cluster, seconds)[0]
    value = compute()
    ranks.store.set(f"{key}/0", value)
    return value


def to_rank_0(name: str, value: Any, seconds: float = math.inf) -> list[Any]:
    """On rank 0 the plain value of each rank, by rank; on the others nothing. Rank 0 waits for all.

    Args:
        name: for errors.
        value: at most 8 MB of JSON, torch's limit for a value in the store.
        seconds: to wait at most, as in `wait_for_ranks`.
    """
    ranks = ending.ranks()
    if ranks is None or ranks.store is None:
        return [value]
    key, cluster = _next_key(ranks, name), ranks.cluster
    ranks.store.set(f"{key}/{cluster.rank}", value)
    if cluster.rank != 0:
        return []
    every = range(cluster.world_size)
    values = wait_for_ranks(ranks.store, key, every, cluster, seconds)
    for rank in every:
        ranks.store.delete(f"{key}/{rank}")
    return values


def _next_key(ranks: Ranks, name: str) -> str:
    """A key that no other exchange uses: all ranks exchange values in the same order."""
    ranks.exchanges += 1
    return f"{name}/{ranks.exchanges}"


def wait_for_ranks(
    store: RankStore, key: str, ranks: Collection[int], cluster: Cluster, seconds: float = math.inf
) -> list[Any]:
    """The values that these ranks set under ``key/<rank>``.

    Raises:
        ClusterError: a rank did not set its value within ``seconds``.
        torch.distributed.DistError: a rank failed, or ended without setting its value.
    """
    keys = [f"{key}/{rank}" for rank in ranks]
    deadline = time.monotonic() + seconds
    while True:
        # In this order: a rank may set its value and end between the two questions.
        ended = store.has(ending.OUTCOMES)
        if store.has(*keys):
            return store.get_each(keys)
        if ended:
            raise torch.distributed.DistNetworkError(f"a rank ended before it set {key}")
        if time.monotonic() > deadline:
            names = zip(ranks, keys, strict=True)
            missing = [cluster.name(rank) for rank, name in names if not store.has(name)]
            raise late(", ".join(missing), seconds)
        time.sleep(ending.POLL_SECONDS)


def late(names: str, seconds: float, address: str = "") -> ClusterError:
    """The error about ranks that did not connect in time."""
    return ClusterError(
        f"{names} did not connect{address} within {seconds:g} s",
        "see its log; allow traffic between the hosts in the security group",
    )
