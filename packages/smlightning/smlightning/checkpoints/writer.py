"""Writes checkpoints while training goes on: it waits for a copy, and a thread writes that."""

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
from smlightning.cluster import exchange, session, shards
from smlightning.cluster.store import RankStore
from smlightning.files import checkpoint_line

KEPT_KEY = "checkpoint/kept"  # the newest number, and which files are still needed


@dataclass
class _Best:
    """The best weights so far, split, in main memory."""

    weights: Any
    shard: shards.Shard
    file: str = ""  # its name, once it is written


class CheckpointWriter:
    """Writes the checkpoints of one folder.

    Each writing rank writes its shard; when all have, rank 0 writes the checkpoint that names them.
    The thread uses the ranks' store, since the process group belongs to the training.

    Args:
        directory: of the checkpoints.
        number: of the next checkpoint, the same on every rank; None: the next one in the folder.
        shard_size: the first so many ranks hold the whole state among them, and write it; the
            others are replicas.
    """

    def __init__(self, directory: Path, number: int | None = None, shard_size: int = 1) -> None:
        self.directory = directory
        self.is_sharded = shard_size > 1
        self._cluster = session.current_cluster()
        self._shard_size = shard_size
        self._number = number or files.next_number(directory)
        self._best: _Best | None = None
        self._memory: dict[str, torch.Tensor] = {}  # of the last copies
        self._best_memory: dict[str, torch.Tensor] = {}
        self._written: Position | None = None  # of the newest checkpoint
        self._pending: Future[None] | None = None

    @property
    def keeps_best(self) -> bool:
        """Whether this rank keeps the best weights, or its shard of them."""
        return self.is_sharded or self._cluster.rank == 0

    @property
    def best_weights(self) -> Mapping[str, Any] | None:
        """The best weights so far, in main memory; of divided ones this rank's shard."""
        if self._best is None:
            return None
        weights: Mapping[str, Any] = shards.join(self._best.weights, [self._best.shard])
        return weights

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

    @cached_property
    def _store(self) -> RankStore:
        return session.connect()

    def resume_from(self, position: Position, best: Mapping[str, Any] | None = None) -> None:
        """Continue after a checkpoint of ``position``.

        Args:
            best: the best weights so far, on the ranks that keep them.
        """
        self._written = position
        if best is not None:
            self.keep_best(best)

    def keep_best(self, weights: Mapping[str, Any]) -> None:
        """Copy the best weights so far; the next checkpoint writes them."""
        if self.busy():  # the thread may be writing the last ones
            self._best_memory = {}
        self._best = _Best(*snapshot(shards.split(weights), self._best_memory))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def write(self, state: Mapping[str, Any], position: Position) -> None:
        """Write ``state`` as the checkpoint of ``position``, unless the newest is of that position
        already.

        It waits until the checkpoint before is written, and returns when the state is copied.
        Failures are not raised here: see `failed` and `finish`.
        """
        if self._pending:
            self._pending.exception()  # waits
        if self.failed() or position == self._written:
            return
        writes = self._cluster.rank < self._shard_size
        copy = snapshot(shards.split(state if writes else {}), self._memory)
        on_gpu = torch.cuda.is_available()
        copied = torch.cuda.current_stream().record_event() if on_gpu else None
        self._pending = self._thread.submit(self._write, position, copy, copied, self._best)
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
        """Wait for the latest checkpoint; raises the error that ended it."""
        if self._pending:
            self._pending.result()

    # In the thread

    def _write(
        self, position: Position, copy: Any, copied: torch.cuda.Event | None, best: _Best | None
    ) -> None:
        if copied:
            copied.synchronize()  # the GPU fills pinned memory while training goes on
        state, shard = copy
        number = self._number
        self._number += 1  # threads of all ranks count the same checkpoints
        key, rank = f"checkpoint/{number}", self._cluster.rank
        names: dict[str, str] = {}  # of this rank's files; none after a failure
        if rank < self._shard_size:
            try:
                names = self._write_shards(number, shard, best)
            finally:
                if self.is_sharded:
                    self._store.set(f"{key}/{rank}", names)
        if rank == 0:
            written = [names]
            if self.is_sharded:
                ranks = range(self._shard_size)
                written = exchange.wait_for_ranks(self._store, key, ranks, self._cluster)
            if not all(written):
                raise torch.distributed.DistNetworkError("a rank could not write its shard")
            every = {kind: [own[kind] for own in written if own[kind]] for kind in names}
            path = files.write(self.directory, position, state, every, number)
            # One write: the thread that trains prints, too.
            print(checkpoint_line(path, len(every["shards"])) + "\n", end="", flush=True)
            kept = files.prune(self.directory)
            if self.is_sharded:
                self._store.set(KEPT_KEY, [kept[0], sorted(kept[1])])
        elif self._cluster.local_rank == 0:
            self._prune()

    def _write_shards(self, number: int, shard: shards.Shard, best: _Best | None) -> dict[str, str]:
        """The names of this rank's files, "" if there is none."""
        place = f"{self._cluster.rank:05d}-of-{self._shard_size:05d}"
        if best and not best.file:
            content = {"weights": best.weights, "shard": best.shard}
            best.file = files.write_file(self.directory, f"{number:06d}-best-{place}", content).name
        name = ""
        if self.is_sharded:
            name = files.write_file(self.directory, f"{number:06d}-{place}", shard).name
        return {"shards": name, "best": best.file if best else ""}

    def _prune(self) -> None:
        """On another host than rank 0's: remove what was not needed one checkpoint ago."""
        kept = self._store.get(KEPT_KEY)
        if kept is not None:
            files.prune_shards(self.directory, kept[0], {*kept[1]})
