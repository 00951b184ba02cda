"""Packages and an index of them, made in a folder."""

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """An empty wheel that requires other packages."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {package}" for package in requires]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr(f"{info}/WHEEL", tag)
        file.writestr(f"{info}/RECORD", "")
    return path


def archive(folder: Path, name: str, version: str) -> Path:
    """A source archive, which nobody may open: it is no archive."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    path.write_text("building it would fail")
    return path


def index(folder: Path, *files: Path) -> str:
    """The address of a package index of these files."""
    for file in files:
        page = folder / file.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as text:
            text.write(f'<a href="{file.as_uri()}">{file.name}</a>\n')
    return folder.as_uri()
