"""A torch file is data under every torch: a program is rejected before torch.load sees it."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from smlightning import torch_files
from smlightning.torch_files import ProgramError
from torchscript import write_archive


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.load must not be called."""

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", load)


@pytest.mark.usefixtures("untouched")
def test_a_torchscript_archive_is_rejected_by_its_form(tmp_path: Path) -> None:
    path = tmp_path / "program.ckpt"
    write_archive(path)
    for source in (path, path.read_bytes()):
        with pytest.raises(ProgramError) as rejected:
            torch_files.load(source)
        assert rejected.value.hint


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("before", "after"), [(b"x", b""), (b"", b"x")])
def test_bytes_around_a_file_of_torch_save_are_rejected(
    before: bytes, after: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "longer.ckpt"
    torch.save({"x": torch.ones(2)}, path)
    path.write_bytes(before + path.read_bytes() + after)
    for source in (path, path.read_bytes()):
        with pytest.raises(ValueError, match=r"torch\.save"):
            torch_files.load(source)


@pytest.mark.usefixtures("untouched")
def test_older_formats_are_rejected(tmp_path: Path) -> None:
    """Before torch 1.6 a file was a row of pickles, and before that a tar file."""
    path = tmp_path / "old.ckpt"
    torch.save({"x": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    for content in (path.read_bytes(), b"", b"PK\x03\x04", path.read_bytes()[:-1]):
        path.write_bytes(content)
        for source in (path, content):
            with pytest.raises(ValueError, match=r"torch\.save"):
                torch_files.load(source)


@pytest.mark.parametrize("tensors", [0, 3])
def test_a_file_of_torch_save_is_loaded(tensors: int, tmp_path: Path) -> None:
    state = {"step": 3, "tensors": [torch.tensor(float(number)) for number in range(tensors)]}
    path, file = tmp_path / "state.ckpt", io.BytesIO()
    torch.save(state, path)
    torch.save(state, file)
    for source in (path, file.getvalue()):
        assert torch_files.load(source) == state
