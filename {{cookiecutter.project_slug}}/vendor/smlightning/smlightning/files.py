"""Files and folders that are written whole or not at all, and their checksums."""

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

# Names that transformers and peft give a model's files. A model's folder has a configuration.
NETWORK_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_BASE = "base"  # not theirs: a folder with the configuration of an adapter's network
# Large ones are several files and an index.
NETWORK_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


def ensure_dir(path: Path) -> Path:
    """``path``, a folder that is created if it is missing.

    Raises:
        UserError: a file is in its place, or it may not be created.
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

    They replace the files of an older model in ``folder`` if the body raises no error. The older
    configuration is removed first, and the new one comes last: a kill leaves the older model, a
    folder that nobody takes for a model, or the new model. Other files in ``folder`` stay, unless
    a new file has their name.

    Raises:
        UserError: an adapter is saved, and ``folder`` has a folder ADAPTER_BASE of something else.
    """
    new = folder / ".saving"
    shutil.rmtree(new, ignore_errors=True)  # left by a killed process
    new.mkdir(parents=True)
    try:
        yield new
        configs = (NETWORK_CONFIG, ADAPTER_CONFIG)
        base = folder / ADAPTER_BASE
        is_adapters = (folder / ADAPTER_WEIGHTS).exists()  # else the folder is someone else's
        if base.exists() and (new / ADAPTER_BASE).exists() and not is_adapters:
            raise UserError(
                f"{base} would be overwritten by an adapter, and is not part of one",
                "move it, or save to another folder",
            )
        for name in configs:
            (folder / name).unlink(missing_ok=True)
        if is_adapters:
            shutil.rmtree(base, ignore_errors=True)
            (folder / ADAPTER_WEIGHTS).unlink()
        for path in list(folder.iterdir()):
            if NETWORK_WEIGHTS.fullmatch(path.name):
                path.unlink()
        # An adapter's weights come before its folder: they mark the folder as an adapter's.
        last = ("", ADAPTER_BASE, *configs)
        places = {path: last.index(path.name) if path.name in last else 0 for path in new.iterdir()}
        for path in sorted(places, key=places.__getitem__):
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


# The line of a checkpoint: folder, name, number, step and number of shards.
CHECKPOINT = re.compile(
    r"^checkpoint: (.*?)((\d{6,})-step(\d+)-[0-9a-f]{16}\.ckpt)(?:, (\d+) shards)?$"
)


def checkpoint_line(path: Path, shards: int) -> str:
    """The line of the log for a checkpoint that is on the disk; `CHECKPOINT` reads it.

    Args:
        path: of the checkpoint.
        shards: files next to it that it needs; 0 if it holds the whole state.
    """
    return f"checkpoint: {path}, {shards} shards" if shards else f"checkpoint: {path}"
