"""The two wheels of a project: built from this checkout, and all that they need is theirs."""

import hashlib
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

import checkout
from projects import Project

WHEELS = {"smlightning": "src", "smlightning_sagemaker": "tools"}


def wheel_of(project: Project, package: str) -> Path:
    (path,) = (project.path / WHEELS[package]).glob(f"{package}-*.whl")
    return path


@pytest.mark.parametrize("package", WHEELS)
def test_a_wheel_holds_the_files_of_this_checkout(package: str, project: Project) -> None:
    """After a change in packages/: make wheels."""
    (source,) = (folder / package for folder in checkout.PACKAGES if (folder / package).is_dir())
    with zipfile.ZipFile(wheel_of(project, package)) as archive:
        packed = {
            name: archive.read(name)
            for name in archive.namelist()
            if name.startswith(f"{package}/")
        }
        others = {name.partition("/")[2] for name in archive.namelist() if name not in packed}
    files = {
        path.relative_to(source.parent).as_posix(): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == files, "stale: run make wheels"
    assert {"METADATA", "licenses/LICENSE"} <= others


def test_the_lock_names_the_runtime_by_path_and_hash(project: Project) -> None:
    wheel = wheel_of(project, "smlightning")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = project.read("src/requirements.txt")
    assert f"./{wheel.name} \\\n    --hash=sha256:{digest}\n" in lock
    assert f"./{wheel.name}" in project.read("src/requirements.in")


def test_no_wheel_requires_the_other_by_a_name_that_anybody_may_publish(project: Project) -> None:
    for package in WHEELS:
        with zipfile.ZipFile(wheel_of(project, package)) as archive:
            (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+/METADATA", name))
            metadata = archive.read(name).decode()
        requires = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
        assert requires and not any("smlightning" in line for line in requires)


def test_no_group_names_our_packages(project: Project) -> None:
    groups = tomllib.loads(project.read("pyproject.toml"))["dependency-groups"]
    assert groups and "smlightning" not in str(groups)
