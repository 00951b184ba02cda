"""Checkpoints are written beside the training: it waits for a copy in memory, a thread does the
rest.
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.snapshot import snapshot
from smlightning.cluster import ending, parts, rendezvous
from smlightning.cluster.location import Cluster
from smlightning.cluster.rendezvous import RankStore

KEPT_KEY = "checkpoint/kept"  # the newest number, and the names of the files that are still needed


@dataclass
class _Best:
    """The best weights so far."""

    weights: Any  # in main memory
    file: Path | None = None  # which holds them, once it is written


class CheckpointWriter:
    """Writes the checkpoints of one folder, whole states, used by rank 0 alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._best: _Best | None = None
        self._copy: Any = None  # the last state, whose memory the next one takes
        self._written: Position | None = None  # of the newest checkpoint
        self._pending: Future[None] | None = None

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """It works on the GPU of the thread that trains.

        A new thread's is GPU 0: ``Event.synchronize`` has no device guard (c10/cuda/CUDAEvent.h)
        and would make every rank a context there, of some 500 MiB each.
        """
        if not torch.cuda.is_available():
            return ThreadPoolExecutor(1, "checkpoint")
        device = torch.cuda.current_device()
        return ThreadPoolExecutor(1, "checkpoint", torch.cuda.set_device, (device,))

    @property
    def best_weights(self) -> Mapping[str, Any] | None:
        """The best weights so far, in main memory."""
        return self._best.weights if self._best else None

    def resume_from(
        self, position: Position, best: Mapping[str, Any] | None = None, file: Path | None = None
    ) -> None:
        """Continue after a checkpoint of ``position``.

        Args:
            best: the best weights, if they still count.
            file: which holds them, if it lies in this writer's folder.
        """
        self._written = position
        if best is not None:
            self._best = _Best(snapshot(self._taken(best)), file)

    def keep_best(self, weights: Mapping[str, Any]) -> None:
        """Copy the best weights so far; the next checkpoint writes them."""
        reusable = self._best.weights if self._best and not self.busy() else None
        self._best = _Best(snapshot(self._taken(weights), reusable))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def write(self, state: Mapping[str, Any], position: Position) -> None:
        """Write ``state`` as the checkpoint of ``position``, unless the newest is of that position
        already.

        It returns when the state is copied, for which it waits until the checkpoint before is
        written. Failures are not raised here: see `failed` and `finish`.
        """
        if self._pending:
            self._pending.exception()  # waits
        if self.failed() or position == self._written:
            return
        self._copy = snapshot(self._taken(state), self._copy)
        on_gpu = torch.cuda.is_available()
        copied = torch.cuda.current_stream().record_event() if on_gpu else None
        self._pending = self._thread.submit(self._write, position, copied, self._best)
        self._written = position

    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._pending is not None and not self._pending.done()

    def failed(self) -> bool:
        """Whether the latest checkpoint could not be written."""
        if self._pending is None or self.busy():
            return False
        return self._pending.exception() is not None

    def finish(self) -> None:
        """Wait for the latest checkpoint; raises what hindered it."""
        if self._pending:
            self._pending.result()

    def _taken(self, state: Any) -> Any:
        """What is copied of a state."""
        return state

    def _write(
        self, position: Position, copied: torch.cuda.Event | None, best: _Best | None
    ) -> None:
        """What the thread does."""
        if copied:
            copied.synchronize()  # the GPU fills pinned memory while training goes on
        if best and best.file is None:
            best.file = files.write_best(self.directory, best.weights)
        files.write(self.directory, position.step, self._copy, best.file if best else None)
        files.prune(self.directory)


class ShardWriter(CheckpointWriter):
    """Writes checkpoints of which each rank has a part, used by every rank.

    Each rank writes its shard and says so on the store; when all have, rank 0 writes the checkpoint
    that names them. No thread uses the process group, which belongs to the training.

    Args:
        cluster: where this rank is.
        number: of the next checkpoint, the same on every rank.
        shards: how many ranks have the state once among them. The first that many write; the
            others, which have replicas, keep their best weights alone.
    """

    def __init__(self, directory: Path, cluster: Cluster, number: int, shards: int) -> None:
        super().__init__(directory)
        self._cluster = cluster
        self._number = number
        self._shards = shards

    @property
    def best_weights(self) -> Mapping[str, Any] | None:
        """This rank's part of the best weights so far, each a `DividedTensor`."""
        if self._best is None:
            return None
        state, shard = self._best.weights
        return parts.join(state, [shard])

    @cached_property
    def _store(self) -> RankStore:
        return rendezvous.connect(self._cluster)

    def _taken(self, state: Any) -> Any:
        return parts.split(state)

    def write(self, state: Mapping[str, Any], position: Position) -> None:
        super().write(state if self._cluster.rank < self._shards else {}, position)

    def _write(
        self, position: Position, copied: torch.cuda.Event | None, best: _Best | None
    ) -> None:
        if copied:
            copied.synchronize()
        number = self._number
        self._number += 1  # threads of all ranks count the same checkpoints
        if self._cluster.rank < self._shards:
            written: dict[str, str] = {}
            try:
                written = self._write_shards(number, best)
            finally:  # after a failure nothing: rank 0 waits for no more
                self._store.set(_written_key(number, self._cluster.rank), json.dumps(written))
        if self._cluster.rank == 0:
            self._write_checkpoint(number, position, best)
        elif self._cluster.local_rank == 0:
            self._prune()

    def _write_shards(self, number: int, best: _Best | None) -> dict[str, str]:
        """The names of this rank's files."""
        place = self._cluster.rank, self._shards
        if best and best.file is None:
            _, shard = best.weights
            best.file = files.write_shard(self.directory, number, shard, *place, best=True)
        _, shard = self._copy
        path = files.write_shard(self.directory, number, shard, *place)
        return {"shard": path.name, "best": best.file.name if best and best.file else ""}

    def _write_checkpoint(self, number: int, position: Position, best: _Best | None) -> None:
        """Rank 0's: the checkpoint is there when this is done."""
        ranks = self._written_by_all(number)
        divided = {
            "shards": [written["shard"] for written in ranks],
            "best_shards": [written["best"] for written in ranks if written["best"]],
            "best": best.weights[0] if best else None,
        }
        state, _ = self._copy
        content = {**state, files.DIVIDED: divided}
        files.write(self.directory, position.step, content, number=number)
        newest, named = files.prune(self.directory)
        self._store.set(KEPT_KEY, json.dumps([newest, sorted(named)]))

    def _written_by_all(self, number: int) -> list[dict[str, str]]:
        """What each rank that writes has written; waits for all of these.

        Raises:
            torch.distributed.DistNetworkError: a rank could not, or has ended.
        """
        ranks = range(self._shards)
        keys = [_written_key(number, rank) for rank in ranks]
        while True:
            # In this order: a rank may write, say so and end between the two questions.
            has_ended = any(self._store.has(ending.end_key(rank)) for rank in ranks)
            if self._store.has(*keys):
                break
            if has_ended:
                raise torch.distributed.DistNetworkError("a rank ended before its shard was there")
            time.sleep(0.02)
        written = [json.loads(self._store.get(key) or "{}") for key in keys]
        if not all(written):
            raise torch.distributed.DistNetworkError("a rank could not write its shard")
        return written

    def _prune(self) -> None:
        """On another host than rank 0's: what was not needed any more one checkpoint ago."""
        text = self._store.get(KEPT_KEY)
        if text is not None:
            newest, named = json.loads(text)
            files.prune_shards(self.directory, newest, named)


def _written_key(number: int, rank: int) -> str:
    return f"checkpoint/{number}/{rank}"
