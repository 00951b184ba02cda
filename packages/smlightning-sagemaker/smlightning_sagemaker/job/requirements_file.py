"""The lines of a requirements.txt, and the packages that they name."""

import codecs
import functools
import re
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

# A line that installs what it does not name.
INCLUDES = re.compile(r"-[re]|--(requirement|editable)")


def lines(path: Path) -> list[str]:
    """The lines of a requirements.txt; none if there is no such file.

    Lines that a backslash continues are joined; comments and empty lines are left out.
    """
    if not path.is_file():
        return []
    return [*_lines(decoded(path.read_bytes()))]


def decoded(data: bytes) -> str:
    """A text as pip decodes a requirements file: by its mark, its first lines, else UTF-8.

    Bytes that this encoding does not have become U+FFFD, as in pip's req_file.py.
    """
    declared = re.search(rb"\A(?:[^\n]*\n)?#[^\n]*?coding[:=]\s*([-\w.]+)", data)
    encoding = declared[1].decode() if declared else "utf-8-sig"
    for mark in (
        codecs.BOM_UTF32_LE,
        codecs.BOM_UTF32_BE,
        codecs.BOM_UTF16_LE,
        codecs.BOM_UTF16_BE,
    ):
        if data.startswith(mark):
            encoding = f"utf-{len(mark) * 8}"
            break
    try:
        return data.decode(encoding, errors="replace")
    except (LookupError, UnicodeError):  # no such encoding
        return data.decode(errors="replace")


@functools.lru_cache(maxsize=4)  # each check of preflight reads the lock's hundreds of lines
def _lines(text: str) -> tuple[str, ...]:
    joined = re.sub(r"\\\r?\n", " ", text)
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return tuple(line for line in stripped if line)


@functools.cache
def requirement_of(line: str) -> Requirement | None:
    """The package that a line names, a wheel by its path too; None for options and other paths."""
    text = re.split(r"\s--", line)[0].strip()  # without hashes
    try:
        if text.endswith(".whl") and "@" not in text:
            name = parse_wheel_filename(PurePosixPath(text).name)[0]
            return Requirement(f"{name} @ {text}")
        return Requirement(text)
    except (InvalidRequirement, InvalidWheelFilename):
        return None
