"""Write files and folders whole or not at all; their checksums."""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smlightning.errors import UserError

NETWORK_CONFIG = "config.json"  # of transformers: a folder with it is a model's
# Large networks have several files and an index.
NETWORK_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


def ensure_dir(path: Path) -> Path:
    """Create the folder ``path`` if it is missing, and return it.

    Raises:
        UserError: the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"folder {path} cannot be created ({error.strerror})", "give another folder"
        ) from None
    return path


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """``with atomic_write(path) as temporary``: write ``temporary``; it then replaces ``path``.

    If the body raises an error, ``path`` stays as it is. The rename is atomic on POSIX and Windows:
    a reader sees the old file or the new one, never a part of one.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_model(folder: Path) -> Iterator[Path]:
    """``with replace_model(folder) as new``: write a model's files into the folder ``new``.

    If the body raises no error, they replace the files of an older model in ``folder``. The older
    configuration is removed first, and the new one is written last: a kill leaves the older model,
    a folder that is not a model, or the new model. Other files in ``folder`` stay, unless a new
    file has the same name.
    """
    new = folder / ".saving"
    shutil.rmtree(new, ignore_errors=True)  # left by a killed process
    new.mkdir(parents=True)
    try:
        yield new
        (folder / NETWORK_CONFIG).unlink(missing_ok=True)
        for path in list(folder.iterdir()):
            if NETWORK_WEIGHTS.fullmatch(path.name):
                path.unlink()
        for path in sorted(new.iterdir(), key=lambda path: path.name == NETWORK_CONFIG):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(facts: Any) -> str:
    """SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
