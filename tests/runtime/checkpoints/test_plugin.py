"""Files of other programs go to Lightning's plugin, and never run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.plugins import CheckpointIO, TorchCheckpointIO

from smlightning.checkpoints.plugin import CheckpointPlugin
from smlightning.torch_files import ProgramError
from torchscript import write_archive


def test_lightning_does_not_run_a_program(tmp_path: Path) -> None:
    own, program = tmp_path / "own.ckpt", tmp_path / "program.ckpt"
    write_archive(program)
    torch.save({"x": torch.ones(1)}, own)
    plugin = CheckpointPlugin(Any, TorchCheckpointIO())  # type: ignore[arg-type]
    assert plugin.load_checkpoint(str(own)) == {"x": torch.ones(1)}
    with pytest.raises(ProgramError):
        plugin.load_checkpoint(str(program))


class OwnFormat(CheckpointIO):
    """A user's plugin, whose checkpoints are not torch's."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        pytest.fail("a run that resumes only reads")

    def load_checkpoint(self, path: Any, **_: Any) -> dict[str, Any]:
        return {"path": path}

    def remove_checkpoint(self, path: Any) -> None:
        pytest.fail("a run that resumes only reads")


def test_a_users_plugin_reads_its_own_files_and_folders(tmp_path: Path) -> None:
    text, folder = tmp_path / "own.json", tmp_path / "folder"
    text.write_text("{}")
    folder.mkdir()
    plugin = CheckpointPlugin(Any, OwnFormat())  # type: ignore[arg-type]
    for path in (text, folder):
        assert plugin.load_checkpoint(path) == {"path": path}
