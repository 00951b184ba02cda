"""Loads files of torch.save as data, without executing anything; the only calls of torch.load.

Before torch 2.6, ``torch.load(weights_only=True)`` hands a TorchScript archive to
``torch.jit.load``, which runs its code (CVE-2025-32434). So the function by which torch recognizes
such an archive is called first (torch 2.5.1: serialization.py, ``_is_torchscript_zip``).
"""

import io
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import serialization

from smlightning.errors import UserError


class ProgramError(UserError):
    """A file holds a program where data is expected."""


def load(source: Path | bytes) -> Any:
    """The object in a file of ``torch.save``, on the CPU; maps a file's tensors into memory.

    Raises:
        ProgramError: it is a TorchScript archive.
        Exception: of any class, if it is damaged or holds more than data.
    """
    if isinstance(source, bytes):
        content = io.BytesIO(source)
        reject_program(content, "a loader's state")
        return torch.load(content, map_location="cpu", weights_only=True)
    with source.open("rb") as file:
        reject_program(file, source)
    return torch.load(source, map_location="cpu", weights_only=True, mmap=True)


def reject_program(file: BinaryIO, name: object) -> None:
    """Raise an error unless ``file`` has the format of torch.save; then go to its start.

    Args:
        name: of the file, for the error.

    Raises:
        ProgramError: it is a TorchScript archive.
        ValueError: torch.save did not write it.
        RuntimeError: it is cut off.
    """
    if not serialization._is_zipfile(file):
        raise ValueError("the file is empty, or torch.save did not write it")
    if serialization._is_torchscript_zip(torch._C.PyTorchFileReader(file)):
        raise ProgramError(
            f"{name} is a program (a TorchScript archive), and a checkpoint is data",
            "find out who wrote it; give a file that training wrote",
        )
    file.seek(0)
