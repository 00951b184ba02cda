"""A torch file is data under every torch: a program is rejected before torch.load sees it."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hostile
from smlightning import torch_files
from smlightning.torch_files import END_SIZE, ProgramError


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that a program creates when it is run."""
    return tmp_path / "marker"


@pytest.fixture
def program(tmp_path: Path, marker: Path) -> Path:
    """An archive that runs when torch.jit.load opens it."""
    path = tmp_path / "program.ckpt"
    hostile.write_program(path, marker)
    return path


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.load must not be called."""

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", load)


@pytest.mark.usefixtures("untouched")
def test_a_program_is_rejected_before_torch_opens_it(program: Path, marker: Path) -> None:
    for source in (program, program.read_bytes()):
        with pytest.raises(ProgramError) as rejected:
            torch_files.load(source)
        assert rejected.value.hint
    assert not marker.exists()
    hostile.run_program(program)
    assert marker.read_bytes() == b"x" * 9, "or the test proves nothing"


def with_two_directories(content: bytes) -> bytes:
    """A harmless directory right before the end; the end points to the program's own.

    Python's zipfile reads the first, torch the second.
    """
    data = io.BytesIO()
    torch.save({"callbacks": {}}, data)
    harmless = data.getvalue()
    directory = bytearray(harmless[-END_SIZE - _size(harmless) : -END_SIZE])
    missing = _size(content) - len(directory)
    struct.pack_into("<H", directory, directory.rfind(b"PK\1\2") + 32, missing)  # a comment
    directory += bytes(missing)
    end = bytearray(content[-END_SIZE:])
    struct.pack_into("<Q", end, 56 + 8, len(content) - END_SIZE + len(directory))
    return content[:-END_SIZE] + bytes(directory) + bytes(end)


def _size(content: bytes) -> int:
    """Bytes of an archive's central directory."""
    return int(struct.unpack_from("<Q", content, len(content) - END_SIZE + 40)[0])


DISGUISES: list[Callable[[bytes], bytes]] = [
    with_two_directories,
    lambda content: b"#!/bin/sh\n" + content,
    lambda content: content + b"\0" * 7,
    lambda content: content.replace(b"constants.pkl", b"Constants.PKL"),
]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguised_program_is_rejected(
    disguise: Callable[[bytes], bytes], program: Path, marker: Path, tmp_path: Path
) -> None:
    path = tmp_path / "disguised.ckpt"
    path.write_bytes(disguise(program.read_bytes()))
    for source in (path, path.read_bytes()):
        with pytest.raises((ProgramError, ValueError)):
            torch_files.load(source)
    assert not marker.exists()


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
