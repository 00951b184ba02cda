"""How Lightning's ``save_checkpoint`` and ``fit(ckpt_path=...)`` reach the files of this package.

``trainer.save_checkpoint(path, storage_options=...)`` hands its options to the strategy's
CheckpointIO: on rank 0 with SingleDevice and DDP (Lightning 2.6.6: trainer.py, ``save_checkpoint``;
strategies/strategy.py), on every rank with this package's ShardedStrategy. Those of this package
are a Position; what comes without one, a ModelCheckpoint's file say, is Lightning's own business.
"""

from pathlib import Path
from typing import Any

import fsspec
from lightning_fabric.plugins import CheckpointIO, TorchCheckpointIO

from smlightning import torch_files
from smlightning.checkpoints import reader
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.reader import ShardFiles
from smlightning.checkpoints.resume import ResumePoint
from smlightning.checkpoints.writer import CheckpointWriter, ShardWriter
from smlightning.errors import UserError


class CheckpointPlugin(CheckpointIO):
    """Writes and reads this run's checkpoints; the rest goes to Lightning's own plugin.

    Args:
        writer: of this run's folder.
        resume_point: the checkpoint that the run resumes from.
        shard_files: of that checkpoint's folder.
        other: the strategy's plugin before this one.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        resume_point: ResumePoint | None,
        shard_files: ShardFiles,
        other: CheckpointIO,
    ) -> None:
        self.writer, self.resume_point = writer, resume_point
        self.shard_files, self.other = shard_files, other

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """For a Position ``path`` is the folder, and the writer names the file."""
        if isinstance(storage_options, Position):
            self.writer.write(checkpoint, storage_options)
        else:
            self.other.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Called on every rank."""
        if self.resume_point and Path(path) == self.resume_point.path:
            return reader.read(
                self.resume_point.path,
                self.resume_point.checksum,
                self.writer.directory,
                self.shard_files,
                sharded=isinstance(self.writer, ShardWriter),
            )
        given = {} if map_location is None else {"map_location": map_location}
        if weights_only is not False:  # Lightning passes None on, False for torch before 2.6
            weights_only = True
            self._reject_program(path)
        return self.other.load_checkpoint(path, **given, weights_only=weights_only)

    def _reject_program(self, path: Any) -> None:
        """Raise a UserError for a file that torch.load would run, or one of another format.

        An owner's plugin has formats of its own, and so has a folder.
        """
        system, name = fsspec.core.url_to_fs(str(path))
        inner = getattr(self.other, "checkpoint_io", None) or self.other  # of AsyncCheckpointIO
        if not isinstance(inner, TorchCheckpointIO) or system.isdir(name):
            return
        with system.open(name, "rb") as file:
            try:
                torch_files.reject_program(file, path)
            except ValueError as error:
                raise UserError(
                    f"{path} is not a checkpoint of torch 1.6 or newer ({error})",
                    "load it with the torch that wrote it, and write it again with torch.save",
                ) from None

    def remove_checkpoint(self, path: Any) -> None:
        self.other.remove_checkpoint(path)

    def teardown(self) -> None:
        self.other.teardown()
