"""Ranks exchange plain values without a process group.

Only rank 0 reads a value of every rank; it then writes one answer, which all read.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch.distributed

from smlightning.cluster import ending
from smlightning.cluster.location import Cluster, ClusterError
from smlightning.cluster.store import Ranks, RankStore

POLL_SECONDS = 0.01  # at first; then doubled, at most to that of ending.py
SHOWN = 60  # characters of a value in an error


class LateRanks(ClusterError):
    """Ranks did not connect in time.

    Attributes:
        names: of these ranks.
    """

    def __init__(self, names: str, seconds: float, address: str = "") -> None:
        super().__init__(
            f"{names} did not connect{address} within {seconds:g} s",
            "see its log; allow traffic between the hosts in the security group",
        )
        self.names = names


Values = Mapping[str, Mapping[str, Any]]
"""Plain values by what to do if one differs between ranks, then by name."""


def check_equal(name: str, values: Values, seconds: float = math.inf) -> None:
    """Compare values with rank 0's; a name that a rank lacks is not compared. Waits for all ranks.

    Args:
        name: of the exchange, for errors.
        seconds: to wait at most, as in `wait_for_ranks`.

    Raises:
        ClusterError: a value differs, with the rank and both values.
    """
    ranks = ending.ranks()
    if ranks is None or ranks.store is None:
        return
    each = to_rank_0(name, values, seconds)
    # Rank 0 itself may wait so long for the others.
    found = from_rank_0(f"compared {name}", lambda: difference(ranks.cluster, each), 2 * seconds)
    if found:
        raise ClusterError(*found)


def difference(cluster: Cluster, each: Sequence[Values]) -> tuple[str, str] | None:
    """Problem and hint about the first value that differs between rank 0 and another.

    Args:
        each: the values of each rank, by rank.
    """
    for hint, expected in each[0].items():
        for rank, values in enumerate(each):
            for name, value in values[hint].items():
                if value != expected.get(name, value):
                    found, wanted = _shown(value), _shown(expected[name])
                    where = cluster.name(rank), cluster.name(0)
                    return f"{name} is {found} on {where[0]}, and {wanted} on {where[1]}", hint
    return None


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


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
        LateRanks: a rank did not set its value within ``seconds``.
        torch.distributed.DistError: a rank failed, or ended without setting its value.
    """
    keys = [f"{key}/{rank}" for rank in ranks]
    deadline = time.monotonic() + seconds
    pause = POLL_SECONDS
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
            raise LateRanks(", ".join(missing), seconds)
        time.sleep(pause)
        pause = min(2 * pause, ending.POLL_SECONDS)
