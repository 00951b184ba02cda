"""Preflight finds what a job's modules import, as the image's Python would find it."""

import shutil
import sys
from pathlib import Path

import pytest

from small_job import GOOD, PROJECT
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.preflight import imports, requirements
from smlightning_sagemaker.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The project with a lock that has no package of these tests."""
    shutil.copytree(PROJECT.src, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return Project(tmp_path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages in this environment."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def install(site: Path, package: str, *files: str) -> None:
    """A package with empty files, as pip leaves it."""
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    record = [*files, *(f"{info.name}/{name}" for name in ("METADATA", "RECORD"))]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in record))


def found(project: Project, code: str, name: str = "extra.py") -> list[Finding]:
    (project.src / name).write_text(code)
    return list(imports.imports(GOOD, project))


def require(project: Project, package: str) -> None:
    with project.requirements.open("a") as file:
        file.write(f"{package}==1.0 --hash=sha256:{'0' * 64}\n")


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import space.one", ""),
        ("from space.one import thing", ""),
        ("from space import one", ""),
        ("from space.two import thing", "space-two"),
        ("import space.two.deep", "space-two"),
        ("from space import two", "space-two"),
        ("import space.three", "the package that has space.three"),
    ],
)
def test_each_part_of_a_namespace_has_its_own_package(project, site, code, missing):
    """Only the package of one part is listed (PEP 420)."""
    install(site, "space-one", "space/one/__init__.py", "space/one/thing.py")
    install(site, "space-two", "space/two/deep/__init__.py", "space/two/thing.py")
    require(project, "space-one")
    findings = found(project, code)
    assert [each.level for each in findings] == (["error"] if missing else [])
    assert all(missing in each.hint for each in findings)


def test_parts_with_an_init_of_the_whole_are_told_apart(project, site):
    """As packages before PEP 420 did, by pkgutil."""
    install(site, "old-one", "old/__init__.py", "old/one.py")
    install(site, "old-two", "old/__init__.py", "old/two.py")
    require(project, "old-one")
    assert found(project, "import old.one") == []
    (finding,) = found(project, "import old.two")
    assert "old-two" in finding.hint


@pytest.mark.parametrize(
    ("image", "code", "level"),
    [
        ("current", "import imp", "error"),  # Python 3.12 removed it
        ("current", "import distutils", ""),  # setuptools has it
        ("current", "import telnetlib", ""),  # 3.13 removed it
        ("mpirun", "import telnetlib", "error"),
        ("smddp", "import imp, tomllib", ""),
        ("current", "import annotationlib", "error"),  # of 3.14
    ],
)
def test_the_standard_library_is_the_images(project, image, code, level):
    (project.src / "extra.py").write_text(code)
    job = GOOD.replace(image=image, distribution="torch_distributed")
    assert [each.level for each in imports.imports(job, project)] == ([level] if level else [])


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads it")
def test_syntax_of_a_newer_python_than_this_one_is_not_judged(project):
    (finding,) = found(project, "type Rows = list[int]\n")
    assert finding.level == "skipped" and "3.11" in finding.problem
    (finding,) = found(project, "def f(:\n")
    assert finding.level == "error"


def test_syntax_that_the_images_older_python_lacks_is_an_error(project, monkeypatch):
    """Here the older one is 3.9, whose `match` is a name."""
    monkeypatch.setattr(imports.images.Profile, "minor", 9)
    (finding,) = found(project, "match rows:\n    case 1:\n        pass\n")
    assert (finding.level, finding.key) == ("error", "src/extra.py")


@pytest.mark.parametrize("line", ["import torch", "from transformers import AutoModel"])
def test_what_options_import_costs_time_in_each_command(project, line):
    text = (project.src / "options.py").read_text()
    assert found(project, text, "options.py") == []
    assert found(project, f"{text}\n\ndef late():\n    {line}\n", "options.py") == []
    (finding,) = found(project, f"{line}\n{text}", "options.py")
    assert (finding.level, finding.key) == ("warning", "src/options.py")


def test_requirements_in_is_compared_with_the_lock(project):
    source = project.requirements.with_suffix(".in")
    assert list(requirements.unlocked(GOOD, project)) == []
    source.write_text(source.read_text() + "rdkit\ntorchvision==0.20.1\nold==1 ; os_name == 'nt'\n")
    first, second = requirements.unlocked(GOOD, project)
    assert (first.level, second.level) == ("error", "warning")
    assert "rdkit" in first.problem and first.hint == "run make lock"
    assert "torchvision" in second.problem


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "latin-1"])
def test_requirements_are_decoded_as_pip_decodes_them(project, encoding):
    text = "# coding: latin-1 é\ntorch==1.0\n" if encoding == "latin-1" else "torch==1.0\n"
    project.requirements.write_bytes(text.encode(encoding))
    assert [each.level for each in requirements.replacing(GOOD, project)] == ["error"]
