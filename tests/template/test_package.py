"""smlightning as an ordinary package: its wheel, and a project without vendor/smlightning."""

import os
import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

import smlightning
from projects import Project, bake


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, by the command of vendor/smlightning/README.md."""
    project = bake(tmp_path_factory.mktemp("wheel"))
    command = "python -m pip wheel --quiet --no-deps --wheel-dir vendor vendor/smlightning"
    project.run(*command.split())
    (path,) = (project.path / "vendor").glob("*.whl")
    left = [path.name for path in (project.path / "vendor" / "smlightning").iterdir()]
    assert set(left) <= {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "smlightning"}
    return path


def test_the_wheel_has_everything(wheel: Path, project: Project) -> None:
    source = project.path / "vendor" / "smlightning"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("smlightning/")}
        licenses = [name for name in archive.namelist() if name.endswith("LICENSE")]
    files = {str(p.relative_to(source)) for p in (source / "smlightning").rglob("*") if p.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert "smlightning/py.typed" in packed and licenses


def test_the_wheel_needs_neither_torch_nor_boto3(wheel: Path, tmp_path: Path) -> None:
    """In a new environment the package can be imported, and `smlightning --help` works."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"

    def run(name: str, *words: str) -> str:
        command = [str(programs / name), *words]
        clean = {**os.environ, "PYTHONPATH": ""}
        return subprocess.check_output(command, cwd=tmp_path, env=clean, text=True)

    run("python", "-m", "pip", "install", "--quiet", str(wheel))
    code = "import smlightning.errors, smlightning.options as o; print(o.__file__)"
    assert str(tmp_path) in run("python", "-c", code)
    assert "rehearse" in run("smlightning", "--help")
    assert smlightning.__version__ in run("smlightning", "--version")


DIGEST_OF_THE_ARCHIVE = """
import hashlib, io
from smlightning import project
from smlightning.launch import source_archive
file = io.BytesIO()
source_archive.write(file, project.find().src)
print(hashlib.sha256(file.getvalue()).hexdigest())
"""


def test_a_project_may_have_the_wheel_in_place_of_the_folder(wheel: Path, tmp_path: Path) -> None:
    """It sends the same request and archive, and make installs the wheel, never from an index."""
    project = bake(tmp_path)

    def sent(**variables: str) -> tuple[str, str]:
        request = project.run("python", "-m", "smlightning", "submit", "--dry-run", **variables)
        digest = project.run("python", "-c", DIGEST_OF_THE_ARCHIVE, **variables).stdout
        return re.sub(r"-\d{6,8}-\d{6}\b", "", request.stdout), digest  # names end in the time

    before = sent()
    site = tmp_path / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    project.run("python", "-m", "pip", *install)
    shutil.rmtree(project.path / "vendor" / "smlightning")
    assert sent(PYTHONPATH=str(site)) == before
    fresh = ("make", "-n", "train", f"VENV={tmp_path / 'fresh'}")
    steps = project.run(*fresh, check=False)
    assert steps.returncode and "vendor/" in steps.stderr
    shutil.copy(wheel, project.path / "vendor")
    steps = project.run(*fresh)
    assert f"'./vendor/{wheel.name}[train]'" in steps.stdout and "--editable" not in steps.stdout
