"""A folder of prepared data, written by one process per node: either complete or missing.

with building(path) as folder:      # None: the data is there
    if folder:
        rows.map(encode, cache_file_name=str(folder / "train.arrow"))
        seal(folder, {"pad_id": 0})

splits, facts = load(path)          # in every process, memory-mapped
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets

from smlightning.errors import UserError
from smlightning.files import digest, ensure_dir, json_digest

FACTS = "facts.json"
CACHE = "cache"  # a folder that `seal` removes


def path_for(data_dir: str, name: str, facts: Any) -> Path:
    """The folder for the data with this name; other ``facts``, plain data, give another folder."""
    readable = "".join(c if c.isalnum() else "-" for c in Path(name).name)[:40]
    return Path(data_dir) / f"{readable}-{json_digest(facts)[:12]}"


@contextlib.contextmanager
def building(path: Path) -> Iterator[Path | None]:
    """A folder to build the data of ``path`` in; None if the data is there. Silences `datasets`.

    The folder is next to ``path`` and gets its name when the block ends, so data of a killed
    process never looks complete. A second process waits for the lock, which the system releases
    when its owner ends.

    Raises:
        UserError: no folder or lock can be made there.
    """
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised, too
    if path.exists():  # it is complete, and the file of the lock may be another user's
        yield None
        return
    folder = ensure_dir(path.parent) / f".{path.name}"
    with _locked(path):
        if path.exists():
            yield None
            return
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        try:
            folder.mkdir()
            yield folder
            folder.replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _locked(path: Path) -> Any:
    """A context manager that holds the lock of ``path``."""
    from filelock import FileLock

    try:
        return FileLock(f"{path}.lock").acquire()
    except (NotImplementedError, OSError) as error:  # filelock 3 and 4 on some network file systems
        problem = f"No file can be locked in {path.parent} ({error})"
        raise UserError(problem, "set --data_dir to another folder") from None


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write plain data for `load`, with a digest of all files: equal on all nodes."""
    shutil.rmtree(folder / CACHE, ignore_errors=True)
    files = sorted(folder.glob("*.arrow"))
    fingerprint = json_digest([facts, [digest(file) for file in files]])
    content = json.dumps({**facts, "fingerprint": fingerprint})
    (folder / FACTS).write_text(content, encoding="utf-8")


def load(path: Path) -> tuple[dict[str, datasets.Dataset], dict[str, Any]]:
    """The splits, memory-mapped: all ranks of a node share one copy; and the plain data of `seal`.

    Raises:
        UserError: a file is damaged.
    """
    try:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
        # Not load_from_disk: fsspec would swallow the signal that stops the job.
        files = path.glob("*.arrow")
        splits = {file.stem: datasets.Dataset.from_file(str(file)) for file in files}
    except (OSError, ValueError) as error:
        problem = f"the prepared data in {path} cannot be read ({error})"
        raise UserError(problem, "remove this folder, and start again") from error
    return splits, facts
