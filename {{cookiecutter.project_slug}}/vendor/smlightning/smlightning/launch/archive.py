"""The code that a job gets: `sourcedir.tar.gz` with src/, and beside it the package smlightning.

SageMaker's toolkit unpacks it to /opt/ml/code, which is on the path there. The package travels
along, so that nothing has to be downloaded for it and a closed VPC works. The SDK's estimator makes
the same archive from `dependencies=[...]` (fw_utils.tar_and_upload_dir).
"""

import gzip
import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO

import smlightning
from smlightning.errors import UserError
from smlightning.files import ensure_dir

PACKAGE = Path(smlightning.__file__).parent  # in vendor/, or where pip has installed it
# Parts of the package that a training process never imports.
LEFT_OUT = {"launch", "ports.py", "rehearsal", "testing", "__main__.py"}


def files(source: Path) -> dict[str, Path]:
    """Each file of the archive, by its name in it, in the archive's order.

    Args:
        source: the owner's modules, the project's src/.

    Raises:
        UserError: src/ has a module that would hide the package.
    """
    contents = {path.relative_to(source).as_posix(): path for path in files_below(source)}
    for name in ("smlightning", "smlightning.py"):
        if (source / name).exists():
            raise UserError(
                f"{source.name}/{name} would hide the package smlightning in the container",
                "give it another name",
            )
    for path in package_files():
        contents[f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}"] = path
    return dict(sorted(contents.items()))


def package_files() -> list[Path]:
    """The files of the package that training needs."""
    return [
        path for path in files_below(PACKAGE) if path.relative_to(PACKAGE).parts[0] not in LEFT_OUT
    ]


def files_below(folder: Path) -> list[Path]:
    """The files below a folder, without compiled ones, which differ from machine to machine."""
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


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


def copy_package(into: Path) -> Path:
    """Copy the package's training part into a folder, for the estimator's `dependencies`.

    Returns:
        The copy, `into`/smlightning.
    """
    copy = ensure_dir(into) / PACKAGE.name
    shutil.rmtree(copy, ignore_errors=True)  # of another version, perhaps
    for path in package_files():
        target = copy / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return copy
