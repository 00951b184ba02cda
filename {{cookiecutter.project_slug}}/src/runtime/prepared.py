"""A folder that is built once per node, is complete or not there at all, and is verified to the byte before it is used.

seconds = prepare(path, build)  # in one process per node
facts = read(path)              # in every process
"""

import errno
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.report import UserError, ensure_dir, error_chain

META = "meta.json"


def prepare(path: Path, build: Callable[[Path], dict[str, Any]]) -> float | None:
    """Have ``path`` built, unless a verified copy is there; the seconds that it took, or None where nothing was done.

    It is built beside its place and renamed into it when complete, so a process that is killed leaves nothing that
    looks finished; a second process waits at the lock, which the system lets go of when its owner ends.

    Args:
        build: writes files into the folder that it is given, and returns facts for :func:`read`, plain JSON.

    Raises:
        UserError: the disk is full, or no folder can be made there; and whatever ``build`` raises.
    """
    from filelock import FileLock

    building = ensure_dir(path.parent) / f".{path.name}"
    with FileLock(f"{path}.lock"):
        if verified(path):
            return None
        started = time.perf_counter()
        shutil.rmtree(building, ignore_errors=True)  # of one that was killed
        try:
            building.mkdir()
            facts = build(building)
            files = {str(p.relative_to(building)): digest(p) for p in sorted(building.rglob("*")) if p.is_file()}
            meta = {**facts, "files": files}
            (building / META).write_text(json.dumps({**meta, "digest": json_digest(meta)}))
            shutil.rmtree(path, ignore_errors=True)  # a copy that failed its check
            building.replace(path)
        except Exception as error:
            if any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in error_chain(error)):
                raise UserError(f"No space left while writing {path}; free some or set --data_dir.") from None
            raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return time.perf_counter() - started


def read(path: Path) -> dict[str, Any]:
    """The facts that ``build`` returned."""
    return json.loads((path / META).read_text())


def verified(path: Path) -> bool:
    """Whether a complete copy is at ``path``, to the byte."""
    try:
        meta = read(path)
        files = meta["files"]
        return meta.pop("digest") == json_digest(meta) and all(
            digest(path / name) == expected for name, expected in files.items()
        )
    except (OSError, ValueError, KeyError):
        return False


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(facts: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
