"""Lets Lightning's ``fit(ckpt_path=...)`` read this package's checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from lightning_fabric.plugins import CheckpointIO, TorchCheckpointIO

from smlightning import torch_files
from smlightning.checkpoints import files, values
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.cluster import session
from smlightning.cluster.shards import snapshot


class CheckpointPlugin(CheckpointIO):
    """Reads this package's checkpoints, which it knows by their names.

    Args:
        writer: of this run's folder.
        other: the strategy's plugin before this one, for other files, as of a ModelCheckpoint.
        with_best: read the best weights, too.
        present: returns states of this run by their places in a checkpoint, for what that lacks.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        other: CheckpointIO,
        with_best: bool = True,
        present: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.writer, self.other, self.with_best = writer, other, with_best
        self.present = present

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        self.other.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Called on every rank."""
        if files.NAME.fullmatch(Path(path).name):
            is_sharded = self.writer.is_sharded
            state = files.read(Path(path), is_sharded, self.with_best and self.writer.keeps_best)
            # Else the optimizer would keep the mapped file.
            if session.current_cluster().device == "cpu" and not is_sharded:
                state["optimizer_states"] = snapshot(state.get("optimizer_states", []), {})
            if values.LEFT_OUT in state:
                values.complete(state, self.present(), state.pop(values.LEFT_OUT))
            return state
        given = {} if map_location is None else {"map_location": map_location}
        if weights_only is not False:  # Lightning passes None on, False for torch before 2.6
            weights_only = True
            self._reject_program(path)
        return self.other.load_checkpoint(path, **given, weights_only=weights_only)

    def _reject_program(self, path: Any) -> None:
        """Raise an error for a file that torch.load would run, or one of another format.

        The user's own plugin may read other formats, and folders.
        """
        system, name = fsspec.core.url_to_fs(str(path))
        inner = getattr(self.other, "checkpoint_io", None) or self.other  # of AsyncCheckpointIO
        if isinstance(inner, TorchCheckpointIO) and not system.isdir(name):
            with system.open(name, "rb") as file:
                torch_files.reject_program(file, path)

    def remove_checkpoint(self, path: Any) -> None:
        self.other.remove_checkpoint(path)

    def teardown(self) -> None:
        self.other.teardown()
