"""A fingerprint of the data's files, for a `Data` without one of its own."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from smlightning.files import json_digest

ENDS = 2**14  # bytes at the beginning and at the end of a file: the first and last rows of a table
READ = 200  # files of which these bytes are read
MOST = 100_000  # files whose names and sizes count
# Files that libraries write next to the data: locks, caches, and what Python's tempfile names, as
# `datasets` does while a map of a saved data set runs (arrow_dataset.py of datasets 5.2).
CACHE = re.compile(r".*\.(lock|tmp)|cache-.*|tmp[a-z0-9_]{8}")


def of_files(dataset: str, environment: Mapping[str, str]) -> str:
    """A digest of the files that ``--dataset`` names, and of the job's channels; "" without any.

    It covers names, sizes, and the first and last bytes, but no times: SageMaker downloads a
    channel anew when it restarts a job. A change in the middle of a file of the same size is not
    found.

    Args:
        dataset: a path, or anything else.
        environment: of the process, with SageMaker's SM_CHANNEL_NAME.
    """
    channels = sorted(name for name in environment if name.startswith("SM_CHANNEL_"))
    folders = {name: Path(environment[name]) for name in channels}
    path = Path(dataset).expanduser()
    if dataset and path.exists() and not Path.cwd().is_relative_to(path.resolve()):
        folders["dataset"] = path
    facts: list[list[str | int]] = []
    for name, folder in folders.items():
        for file in _files(folder):
            if len(facts) == MOST:
                break
            size = file.stat().st_size
            ends = _ends(file, size) if len(facts) < READ else ""
            facts.append([name, file.relative_to(folder).as_posix(), size, ends])
    return json_digest(facts) if facts else ""


def _files(path: Path) -> Iterator[Path]:
    """The file, or those in the folder in order of name, without hidden and temporary ones."""
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(files):
            file = Path(folder, name)
            if not name.startswith(".") and not CACHE.fullmatch(name) and file.is_file():
                yield file


def _ends(file: Path, size: int) -> str:
    with file.open("rb") as content:
        first = content.read(ENDS)
        content.seek(max(size - ENDS, 0))
        return json_digest([first.hex(), content.read(ENDS).hex()])
