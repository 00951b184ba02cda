"""Folders and files that are whole or not there, and their checksums."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smlightning.errors import UserError


def ensure_dir(path: Path) -> Path:
    """``path``, a folder that is created where it is missing.

    Raises:
        UserError: a file is in its place, or it may not be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"folder {path} cannot be created ({error.strerror})", "name another place"
        ) from None
    return path


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """``with atomic_write(path) as temporary``: write that file; it takes ``path``'s place.

    It does so only if the body raises nothing. The rename is atomic on POSIX and Windows, so a
    reader sees the old file or the new one, never half of one.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(facts: Any) -> str:
    """SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
