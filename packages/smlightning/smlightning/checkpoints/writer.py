"""Writes checkpoints while training goes on: it waits for a copy, and a thread writes that."""

import sys
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from smlightning.checkpoints import files, values
from smlightning.checkpoints.position import Position
from smlightning.cluster import exchange, session, shards
from smlightning.cluster.shards import snapshot
from smlightning.cluster.store import RankStore
from smlightning.training.rank_checks import listed

KEPT_KEY = "checkpoint/kept"  # the newest number, and which files are still needed


@dataclass
class _Weights:
    """Weights that were validated, split, in main memory."""

    weights: Any
    shard: shards.Shard
    memory: dict[str, torch.Tensor]
    file: str = ""  # its name, once it is written


@dataclass
class _Copy:
    """A state that `CheckpointWriter.write` writes."""

    position: Position
    state: Any
    shard: shards.Shard
    complete: torch.cuda.Event | None  # the GPU fills pinned memory while training goes on
    trained: Collection[str]  # names of weights that have to be finite
    best: _Weights | None

    def is_finite(self) -> bool:
        """Whether this rank's part of the trained weights is."""
        weights = self.state.get("state_dict", {})
        for name in self.trained:
            parts = self.shard.get(f"/state_dict/{name}") or {0: weights.get(name)}
            for part in parts.values():
                # a sum takes a third of the time of isfinite().all(), but may overflow
                is_doubtful = torch.is_tensor(part) and not part.sum().abs().isfinite()
                if is_doubtful and not part.isfinite().all():
                    return False
        return True


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
        self.keeps_best = self.is_sharded or self._cluster.rank == 0  # or its shard of them
        self.position: Position | None = None  # of the newest copy that `write` got
        self.written: Position | None = None  # of the newest checkpoint on disk, on rank 0
        self._validated: _Weights | None = None
        self._best: _Weights | None = None
        self._memory: dict[str, torch.Tensor] = {}  # of the last copy
        self._held: _Copy | None = None
        self._pending: Future[None] | None = None
        self._printed: set[str] = set()  # lines about what is left out

    @property
    def best_weights(self) -> Mapping[str, Any] | None:
        """The best weights so far, in main memory; of sharded ones this rank's shard."""
        if self._best is None:
            return None
        weights = shards.join(self._best.weights, [self._best.shard])
        known: Mapping[str, Any] = values.decoded(weights)
        return known

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
        self.position = self.written = position
        if best is not None:
            self.keep_validated(best)
            self.choose_validated()

    def keep_validated(self, weights: Mapping[str, Any]) -> None:
        """Copy the weights of a validation, on the ranks that keep the best ones."""
        if not self.keeps_best:
            return
        memory = self._validated.memory if self._validated else {}
        state, _ = values.encoded({"state_dict": weights})
        split, shard = snapshot(shards.split(state["state_dict"]), memory)
        self._validated = _Weights(split, shard, memory)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def choose_validated(self) -> None:
        """The weights of the last validation are the best so far; the next checkpoint writes them.

        The memory of those before is used again, unless the thread may be writing them.
        """
        self._best, self._validated = self._validated, None if self.busy() else self._best

    def hold(
        self, state: Mapping[str, Any], position: Position, trained: Collection[str] = ()
    ) -> None:
        """Copy ``state`` for `write`, unless the newest checkpoint is of that position already.

        It waits until the checkpoint before is written. Failures to write are not raised here: see
        `failed` and `finish`.

        Args:
            trained: names in ``state_dict`` of weights that have to be finite, or no checkpoint
                is written.

        Raises:
            UserError: as `values.encoded` does.
        """
        if self._pending:
            self._pending.exception()  # waits
        self._held = None
        if self.failed() or position == self.position or not self.keeps_best:
            return
        writes = self._cluster.rank < self._shard_size
        plain, left_out = values.encoded(state if writes else {})
        if left_out:
            plain[values.LEFT_OUT] = [list(place) for place in left_out]
            self._print(left_out)
        split, shard = snapshot(shards.split(plain), self._memory)
        on_gpu = torch.cuda.is_available()
        complete = torch.cuda.current_stream().record_event() if on_gpu else None
        self._held = _Copy(position, split, shard, complete, trained, self._best)

    def _print(self, left_out: Mapping[values.Place, str]) -> None:
        """Print once what a checkpoint lacks, and what this means for a resumed run."""
        options: list[str] = []
        others: list[str] = []
        for place, kind in left_out.items():
            is_option = "hparams" in str(place[0]) or "hyper_parameters" in str(place[0])
            (options if is_option else others).append(f"{values.text(place)} ({kind})")
        lines = (
            (options, "checkpoint: left out, since a resume does not need them: {}"),
            (
                others,
                "checkpoint: inexact: after a resume, {} will start anew; use plain values, "
                "tensors or arrays there",
            ),
        )
        for names, line in lines:
            text = line.format(listed(names))
            if names and text not in self._printed and self._cluster.rank == 0:
                print(text, flush=True)
            self._printed.add(text)

    def write(self) -> None:
        """Write the copy that is held, if there is one; returns at once."""
        held, self._held = self._held, None
        if held:
            self._pending = self._thread.submit(self._write, held)
            self.position = held.position

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

    def _write(self, copy: _Copy) -> None:
        if copy.complete:
            copy.complete.synchronize()
        number = self._number
        self._number += 1  # threads of all ranks count the same checkpoints
        key, rank = f"checkpoint/{number}", self._cluster.rank
        names: dict[str, str] | None = {}  # of this rank's files; none after a failure
        if rank < self._shard_size:
            try:
                names = self._write_shards(number, copy) if copy.is_finite() else None
            finally:
                if self.is_sharded:
                    self._store.set(f"{key}/{rank}", names)
        if rank == 0:
            written: list[Any] = [names]
            if self.is_sharded:
                ranks = range(self._shard_size)
                written = exchange.wait_for_ranks(self._store, key, ranks, self._cluster)
            if None in written:
                last = files.newest_path(self.directory)
                print(
                    f"warning: no checkpoint of step {copy.position.step}: weights are not finite; "
                    f"the last good one is {last or 'missing'}",
                    file=sys.stderr,
                )
                return
            if not all(written):
                raise torch.distributed.DistNetworkError("a rank could not write its shard")
            kinds = ("shards", "best")
            every = {kind: [own[kind] for own in written if own[kind]] for kind in kinds}
            path = files.write(self.directory, copy.position, copy.state, every, number)
            self.written = copy.position
            count = len(every["shards"])
            line = f"checkpoint: {path}, {count} shards" if count else f"checkpoint: {path}"
            print(f"{line}\n", end="", flush=True)  # one write: the thread that trains prints, too
            kept = files.prune(self.directory)
            if self.is_sharded:
                self._store.set(KEPT_KEY, [kept[0], sorted(kept[1])])
        elif self._cluster.local_rank == 0:
            self._prune()

    def _write_shards(self, number: int, copy: _Copy) -> dict[str, str]:
        """The names of this rank's files, "" if there is none."""
        best = copy.best
        place = f"{self._cluster.rank:05d}-of-{self._shard_size:05d}"
        if best and not best.file:
            content = {"weights": best.weights, "shard": best.shard}
            best.file = files.write_file(self.directory, f"{number:06d}-best-{place}", content).name
        name = ""
        if self.is_sharded:
            name = files.write_file(self.directory, f"{number:06d}-{place}", copy.shard).name
        return {"shards": name, "best": best.file if best else ""}

    def _prune(self) -> None:
        """On another host than rank 0's: remove what was not needed one checkpoint ago."""
        kept = self._store.get(KEPT_KEY)
        if kept is not None:
            files.prune_shards(self.directory, kept[0], {*kept[1]})
