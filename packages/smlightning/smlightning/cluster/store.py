"""The ranks' store: it works before there is a process group and after one broke."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from smlightning.cluster.location import Cluster


@dataclass(frozen=True)
class RankStore:
    """Plain values by key that every rank of a job reads and writes.

    Every method raises ``torch.distributed.DistError``, a RuntimeError, once the rank that keeps
    the store is gone.

    Args:
        store: a ``torch.distributed.Store``; this module does not import torch.
    """

    store: Any

    def set(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def get(self, key: str) -> Any:
        """The value of a key, None if no rank has set it; does not wait."""
        return json.loads(self.store.get(key)) if self.has(key) else None

    def get_each(self, keys: Sequence[str]) -> list[Any]:
        """The values of keys that are set."""
        return [json.loads(value) for value in self.store.multi_get(list(keys))]

    def has(self, *keys: str) -> bool:
        """Whether all these keys are set."""
        return bool(self.store.check(list(keys)))

    def append(self, key: str, value: Any) -> None:
        """Add a value to the list of a key; all ranks see the same order."""
        self.store.append(key, json.dumps(value) + "\n")

    def appended(self, key: str) -> list[Any]:
        """The values that were appended to a key; does not wait."""
        return list(map(json.loads, self.store.get(key).splitlines())) if self.has(key) else []

    def delete(self, key: str) -> None:
        self.store.delete_key(key)


@dataclass
class Ranks:
    """The ranks of a session, as this one reaches them.

    Attributes:
        store: for the main thread; None before the ranks connect, and with one process.
        connect: opens another connection for a thread: the calls of one connection queue.
        exchanges: number of the exchanges of values so far, the same on every rank.
    """

    cluster: Cluster
    store: RankStore | None = None
    connect: Callable[[], RankStore] | None = None
    exchanges: int = 0
