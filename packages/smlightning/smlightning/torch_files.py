"""Loads files of torch.save as data, without executing anything; the only calls of torch.load.

Before torch 2.6, ``torch.load(weights_only=True)`` hands a TorchScript archive to
``torch.jit.load``, which runs its code (CVE-2025-32434). It takes a zip file with a record
``constants.pkl`` for such an archive (torch 2.5.1: serialization.py, ``_is_torchscript_zip``).
"""

import contextlib
import io
import os
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch

from smlightning.errors import UserError

# The end of a file that torch.save wrote, with torch 2.5.1 as with 2.13: a zip file's central
# directory, then these three records (PKWARE, APPNOTE.TXT: 4.3.14 to 4.3.16).
DIRECTORY_END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_64 = struct.Struct("<4sLQL")
DIRECTORY_END = struct.Struct("<4s4H2LH")
END_SIZE = DIRECTORY_END_64.size + LOCATOR_64.size + DIRECTORY_END.size

PROGRAM_RECORDS = re.compile(rb"constants\.pkl|/code/", re.IGNORECASE)


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
    """Raise an error unless ``file`` has the layout of torch.save; then go to its start.

    Args:
        name: of the file, for the error.

    Raises:
        ProgramError: it is a TorchScript archive.
        ValueError: torch.save did not write it.
    """
    if PROGRAM_RECORDS.search(_directory(file)):
        raise ProgramError(
            f"{name} is a program (a TorchScript archive), and a checkpoint is data",
            "find out who wrote it; give a file that training wrote",
        )
    file.seek(0)


def _directory(file: BinaryIO) -> bytes:
    """The central directory of a zip file, with all its records' names.

    torch.save writes nothing between the directory and the end of the file, so torch's reader
    (miniz) can find no other directory.

    Raises:
        ValueError: the file has another layout.
    """
    end = file.seek(0, os.SEEK_END) - END_SIZE
    file.seek(0)
    is_zip = file.read(4) == b"PK\x03\x04"  # else torch.load takes it for an older format
    with contextlib.suppress(struct.error):  # it is shorter
        file.seek(max(end, 0))
        tail = file.read()
        signature_64, length, *_, size, start = DIRECTORY_END_64.unpack_from(tail)
        locator, _, place, _ = LOCATOR_64.unpack_from(tail, DIRECTORY_END_64.size)
        signature, *_, comment = DIRECTORY_END.unpack_from(tail, END_SIZE - DIRECTORY_END.size)
        found = (signature_64, length, locator, place, signature, comment, start + size)
        if is_zip and found == (b"PK\6\6", 44, b"PK\6\7", end, b"PK\5\6", 0, end):
            file.seek(start)
            return file.read(size)
    raise ValueError("the file is cut off, or torch.save did not write it")
