"""smlightning as an ordinary package: installed alone, as a wheel, and in a project without
vendor/.
"""

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import smlightning
from projects import Project, bake

EXTRAS = {"train", "launch", "simulation", "rehearsal", "testing"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, by the one command that vendor/smlightning/README.md names."""
    project = bake(tmp_path_factory.mktemp("wheel"))
    command = "python -m pip wheel --quiet --no-deps --wheel-dir vendor vendor/smlightning"
    project.run(*command.split())
    (path,) = (project.path / "vendor").glob("*.whl")
    left = [path.name for path in (project.path / "vendor" / "smlightning").iterdir()]
    assert set(left) <= {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "smlightning"}
    return path


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [
            name
            for name in archive.namelist()
            if name.startswith("smlightning-") and name.endswith("METADATA")
        ]
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def test_the_wheel_has_everything(wheel: Path, project: Project) -> None:
    source = project.path / "vendor" / "smlightning"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("smlightning/")}
        license = [name for name in archive.namelist() if name.endswith("LICENSE")]
    files = {str(p.relative_to(source)) for p in (source / "smlightning").rglob("*") if p.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert "smlightning/py.typed" in packed and license
    facts = metadata(wheel)
    assert facts["Version"] == smlightning.__version__
    assert set(facts.get_all("Provides-Extra")) == EXTRAS


def test_installed_alone(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, without torch and boto3: it imports, and its command helps."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, text=True, timeout=300)
    clean = {"PATH": str(programs)}

    def run(*command: str) -> str:
        ended = subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    python = str(programs / "python")
    code = "import smlightning, smlightning.errors, smlightning.options as o; print(o.__file__)"
    assert str(tmp_path) in run(python, "-c", code)
    version = run(python, "-c", "import smlightning; print(smlightning.__version__)")
    assert version.strip() == smlightning.__version__
    help = run(str(programs / "smlightning"), "--help")
    for command in ("preflight", "submit", "rehearse", "deploy", "tune"):
        assert command in help
    assert version.strip() in run(str(programs / "smlightning"), "--version")


DIGEST_OF_THE_ARCHIVE = """
import hashlib, io
from smlightning import project
from smlightning.launch import source_archive
file = io.BytesIO()
source_archive.write(file, project.find().src)
print(hashlib.sha256(file.getvalue()).hexdigest())
"""


def without_time(request: str) -> str:
    """A request whose job's name ends in no time."""
    return re.sub(r"-\d{6,8}-\d{6}\b", "", request)


def test_a_project_without_vendor(wheel: Path, tmp_path: Path, words: Path) -> None:
    """With its wheel in place of the folder: the same archive and request, and training runs."""
    project = bake(tmp_path)
    before = project.run("python", "-m", "smlightning", "submit", "--dry-run").stdout
    archive_before = project.run("python", "-c", DIGEST_OF_THE_ARCHIVE).stdout
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--find-links", str(wheel.parent), "--target", str(site), "smlightning"]
    subprocess.run(install, check=True, capture_output=True)
    shutil.rmtree(project.path / "vendor" / "smlightning")
    installed = {"PYTHONPATH": str(site)}
    where = project.run("python", "-c", "import smlightning as s; print(s.__file__)", **installed)
    assert where.stdout.startswith(str(site))
    after = project.run("python", "-m", "smlightning", "submit", "--dry-run", **installed).stdout
    assert without_time(after) == without_time(before)
    archive = project.run("python", "-c", DIGEST_OF_THE_ARCHIVE, **installed).stdout
    assert archive == archive_before and len(archive.strip()) == 64
    options = ["--dataset", str(words), "--epochs", "1", "--output_dir", "out"]
    said = project.run("python", "src/train.py", *options, **installed).stdout
    assert said.splitlines()[-1].startswith("test/accuracy ")
    fresh = ("make", "-n", "train", f"VENV={tmp_path / 'fresh'}")
    steps = project.run(*fresh, check=False)
    assert steps.returncode and "vendor/" in steps.stderr  # and no index is asked
    shutil.copy(wheel, project.path / "vendor")
    steps = project.run(*fresh)
    assert f"'./vendor/{wheel.name}[train]'" in steps.stdout and "--editable" not in steps.stdout
