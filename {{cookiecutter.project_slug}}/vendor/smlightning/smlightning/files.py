"""Folders and files that are whole or not there, and their checksums."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smlightning.errors import UserError

# What transformers and peft name a model's files. Without a configuration a folder holds no model.
NETWORK_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_BASE = "base"  # not theirs: a folder with the configuration of an adapter's network
NETWORK_WEIGHTS = "model*.safetensors*"  # a pattern: large ones are several files and an index


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


@contextlib.contextmanager
def replace_model(folder: Path) -> Iterator[Path]:
    """``with replace_model(folder) as new``: write a model's files into the folder ``new``.

    They take the places of those of an older model in ``folder`` if the body raises nothing. The
    older configuration is removed before anything else, and the new one comes last: who is killed
    on the way leaves the older model, or a folder that is not taken for one, or the new model.
    What is in ``folder`` beside a model stays, but for files of the same names.
    """
    new = folder / ".saving"
    shutil.rmtree(new, ignore_errors=True)  # of one who was killed
    new.mkdir(parents=True)
    try:
        yield new
        configs = (NETWORK_CONFIG, ADAPTER_CONFIG)
        for name in configs:
            (folder / name).unlink(missing_ok=True)
        if (folder / ADAPTER_WEIGHTS).exists():  # or the folder of this name is someone else's
            shutil.rmtree(folder / ADAPTER_BASE, ignore_errors=True)
        for path in (folder / ADAPTER_WEIGHTS, *folder.glob(NETWORK_WEIGHTS)):
            path.unlink(missing_ok=True)
        for path in sorted(new.iterdir(), key=lambda path: path.name in configs):
            place = folder / path.name
            if place.is_dir():  # which a rename would not replace
                shutil.rmtree(place)
            path.replace(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(facts: Any) -> str:
    """SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
