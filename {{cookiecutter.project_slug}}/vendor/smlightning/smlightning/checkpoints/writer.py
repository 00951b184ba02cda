"""Checkpoints are written beside the training: it waits for a copy in memory, a thread does the
rest.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.snapshot import snapshot


@dataclass
class _Best:
    """The best weights so far."""

    weights: dict[str, Any]  # in main memory
    file: Path | None = None  # which holds them, once it is written


class CheckpointWriter:
    """Writes the checkpoints of one folder, used by rank 0 alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._best: _Best | None = None
        self._copy: Any = None  # the last state, whose memory the next one takes
        self._written: Position | None = None  # of the newest checkpoint
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Path] | None = None

    @property
    def best_weights(self) -> Mapping[str, Any] | None:
        """The best weights so far, in main memory."""
        return self._best.weights if self._best else None

    def resume_from(self, position: Position, best: Path | None) -> None:
        """Continue after a checkpoint of ``position``; ``best``: its file of best weights, if they
        still count.
        """
        self._written = position
        if best is None:
            return
        weights = snapshot(files.load(best))
        beside = best.parent == self.directory  # else they are written to this folder, too
        self._best = _Best(weights, best if beside else None)

    def keep_best(self, weights: Mapping[str, Any]) -> None:
        """Copy the best weights so far; the next checkpoint writes them."""
        reusable = self._best.weights if self._best and not self._busy() else None
        self._best = _Best(snapshot(weights, reusable))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def write(
        self,
        state: Mapping[str, Any],
        position: Position,
        wait: bool = False,
        skip_if_busy: bool = False,
    ) -> None:
        """Write ``state`` as the checkpoint of ``position``, unless the newest is of that position
        already.

        Args:
            wait: return when it is on disk; else when it is copied.
            skip_if_busy: leave this one out while another is being written; else it follows that
                one.

        Failures are not raised here: see `failed` and `finish`.
        """
        if self._pending and not skip_if_busy:
            self._pending.exception()  # waits
        if self.failed() or self._busy():
            return
        if position != self._written:
            self._copy = snapshot(state, self._copy)
            on_gpu = torch.cuda.is_available()
            copied = torch.cuda.current_stream().record_event() if on_gpu else None
            self._pending = self._thread.submit(self._write, position, copied, self._best)
            self._written = position
        if wait and self._pending:
            self._pending.exception()

    def failed(self) -> bool:
        """Whether the latest checkpoint could not be written."""
        if self._pending is None or self._busy():
            return False
        return self._pending.exception() is not None

    def finish(self) -> None:
        """Wait for the latest checkpoint; raises what hindered it."""
        if self._pending:
            self._pending.result()

    def _busy(self) -> bool:
        return self._pending is not None and not self._pending.done()

    def _write(
        self, position: Position, copied: torch.cuda.Event | None, best: _Best | None
    ) -> Path:
        """What the thread does."""
        if copied:
            copied.synchronize()  # the GPU fills pinned memory while training goes on
        if best and best.file is None:
            best.file = files.write_best(self.directory, best.weights)
        path = files.write(self.directory, position.step, self._copy, best.file if best else None)
        files.prune(self.directory)
        return path
