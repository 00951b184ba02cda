"""The code that a job gets: `sourcedir.tar.gz` with src/ as it stands.

SageMaker's toolkit unpacks it to /opt/ml/code and installs its requirements.txt, which names the
wheel of smlightning in it. `submit` sends `files`; a rehearsal uses a copy of them.
"""

import gzip
import re
import shutil
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from smlightning.files import ensure_dir

# Names of files with keys: of SSH, PuTTY, PKCS #12, Java, KeePass, and logins of AWS and Google.
KEY_FILE = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.*\.(ppk|p12|pfx|jks|kdbx)|credentials(\.json)?", re.I
)


def files(source: Path) -> dict[str, Path]:
    """Each file of the archive, by its name in it, in the archive's order.

    Links, files of keys and whatever `listed` leaves out are not among them.
    """
    return {
        path.relative_to(source).as_posix(): path
        for path in listed(source)
        if not path.is_symlink() and not KEY_FILE.fullmatch(path.name)
    }


def versions(source: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file of the archive, by its name: others once a file was changed."""
    facts = {name: path.stat() for name, path in files(source).items()}
    return {name: (each.st_size, each.st_mtime_ns) for name, each in facts.items()}


def listed(source: Path) -> Iterator[Path]:
    """Files and links below a folder, sorted, without hidden and compiled ones.

    A name that begins with a dot is a tool's: .git, .npmrc, .env, .ipynb_checkpoints. Compiled
    files differ between machines.
    """
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        is_left_out = "__pycache__" in parts or any(map(is_hidden, parts))
        if not is_left_out and (path.is_symlink() or path.is_file()):
            yield path


def hidden(source: Path) -> list[Path]:
    """Hidden files and folders, which `listed` leaves out and the SDK's estimator uploads."""
    found = sorted(source.rglob(".*"))
    return [path for path in found if not any(map(is_hidden, path.relative_to(source).parts[:-1]))]


def is_hidden(name: str) -> bool:
    return name.startswith(".")


def write(file: BinaryIO, source: Path) -> None:
    """Write the archive: the same bytes for the same files, whoever makes it, and when."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in files(source).items():
            facts = path.stat()
            entry = tarfile.TarInfo(name)
            entry.size = facts.st_size
            entry.mode = 0o755 if facts.st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)


def copy(source: Path, into: Path, without: Collection[str] = ()) -> Path:
    """Replace the content of a folder by the archive's files.

    Args:
        source: the project's src/.
        into: the folder.
        without: names of files and folders that are not copied.

    Returns:
        `into`.
    """
    contents = {
        name: path
        for name, path in files(source).items()
        if {*without}.isdisjoint(Path(name).parts)
    }
    shutil.rmtree(into, ignore_errors=True)  # files of an earlier job
    for name, path in contents.items():
        ensure_dir((into / name).parent)
        shutil.copy(path, into / name)
    return into
