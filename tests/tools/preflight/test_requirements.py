"""Preflight asks uv whether requirements.txt can be installed in the image, by the job's settings
and not by this machine's. Every index here is a folder of the test's own.
"""

import hashlib
from pathlib import Path

import pytest

from package_index import archive, index, wheel
from small_job import GOOD, PROJECT
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.installed import Installed
from smlightning_sagemaker.job.images import PROFILES
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import imports, requirements
from smlightning_sagemaker.project import Project

JOB = GOOD.replace(distribution="torch_distributed", image="current")  # torch 2.13.0, Python 3.12


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)  # of this machine
    (tmp_path / "project" / "src").mkdir(parents=True)
    return Project(tmp_path / "project")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def simple(tmp_path: Path, files: Path) -> str:
    """An index with torch 99, a package that requires it, and one that accepts the image's."""
    return index(
        tmp_path / "simple",
        wheel(files, "torch", "99.0"),
        wheel(files, "hungry", "1.0", "torch>=99"),
        wheel(files, "modest", "1.0", "torch>=2"),
    )


def judged(
    project: Project, text: str, job: Job = JOB, *, offline: bool = False, **environment: str
) -> list[Finding]:
    """Findings on a requirements.txt, where [environment] of job.toml has these variables."""
    project.requirements.write_text(text + "\n", encoding="utf-8")
    job = job.replace(environment=environment)
    named = [*requirements.replacing(job, project), *requirements.wheels(job, project)]
    return [*named, *requirements.resolved(job, project, offline=offline)]


def levels(found: list[Finding]) -> list[str]:
    return [finding.level for finding in found]


def hashed(path: Path, line: str = "") -> str:
    """A line of a requirements.txt with the hash of a file: its name and version, or another."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{line or '=='.join(path.name.split('-')[:2])} --hash=sha256:{digest}"


def test_a_package_that_requires_another_torch_is_an_error(project: Project, simple: str) -> None:
    assert not judged(project, "modest", PIP_INDEX_URL=simple)
    [found] = judged(project, "hungry", PIP_INDEX_URL=simple)
    assert found.level == "error" and "torch 99.0" in found.problem
    (project.src / "base.txt").write_text("hungry\n")
    assert levels(judged(project, "-r base.txt", PIP_INDEX_URL=simple)) == ["error"]


def test_settings_of_this_machine_do_not_change_the_result(
    project: Project, simple: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("torch<99\nmodest<1\n")
    wheel(tmp_path / "mine", "absent", "1.0")
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_CONSTRAINT", str(tmp_path / "constraints.txt"))
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(tmp_path / "mine"))
    assert not judged(project, "modest", PIP_INDEX_URL=simple)
    assert levels(judged(project, "hungry", PIP_INDEX_URL=simple)) == ["error"]
    assert levels(judged(project, "absent", PIP_INDEX_URL=simple)) == ["error"]


def test_the_index_is_the_jobs_and_otherwise_this_machines(
    project: Project, simple: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = index(tmp_path / "mirror", wheel(tmp_path / "more", "mirrored", "1.0"))
    monkeypatch.setenv("PIP_INDEX_URL", mirror)
    assert not judged(project, "mirrored")
    assert levels(judged(project, "mirrored", PIP_INDEX_URL=simple)) == ["error"]
    assert not judged(project, "mirrored\nmodest", PIP_EXTRA_INDEX_URL=simple)


def test_constraints_of_the_job_count(project: Project, simple: str) -> None:
    (project.src / "constraints.txt").write_text("modest<1\n")
    constrained = judged(project, "modest", PIP_INDEX_URL=simple, PIP_CONSTRAINT="constraints.txt")
    assert levels(constrained) == ["error"]


def test_requirements_that_cannot_be_resolved_here_are_skipped(
    project: Project, simple: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert levels(judged(project, "modest", offline=True)) == ["skipped"]
    closed = judged(project, "mine", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    git = judged(project, "mine @ git+http://127.0.0.1:9/mine.git", PIP_INDEX_URL=simple)
    token = judged(project, "mine", CA_REPOSITORY_ARN="arn:aws:codeartifact:…")
    folder = judged(project, "mine", PIP_FIND_LINKS="/opt/ml/input/data/wheels")
    own_image = judged(project, "modest", JOB.replace(image="ecr.example/mine:1"))
    index(tmp_path / "simple", archive(files, "oldfashioned", "4.9.3"))
    unbuilt = judged(project, "oldfashioned", PIP_INDEX_URL=simple)
    for found in (closed, git, token, folder, own_image, unbuilt):
        assert levels(found) == ["skipped"], found
    monkeypatch.setattr(requirements, "uv", lambda: None)
    [found] = judged(project, "modest", PIP_INDEX_URL=simple)
    assert found.level == "skipped" and "make preflight" in found.hint


@pytest.mark.parametrize(
    "line, replaces",
    [
        ('torch==2.4.0 ; sys_platform == "darwin"', False),
        ('torch==2.4.0 ; sys_platform == "darwin" \\\n    --hash=sha256:' + "0" * 64, False),
        ('torch==2.4.0 ; sys_platform == "linux"', True),
        ('torch==2.4.0 ; python_version < "3.12"', False),
        ('torch==2.4.0 ; python_version >= "3.12"', True),
        ('torch==2.4.0 ; platform_machine == "aarch64"', False),
        ("torch==2.13.0 --hash=sha256:" + "0" * 64, False),
        ("./wheels/torch-2.13.0-cp312-cp312-linux_x86_64.whl", True),
    ],
)
def test_markers_of_a_line_are_those_of_the_image(
    line: str, replaces: bool, project: Project
) -> None:
    project.requirements.write_text(line + "\n")
    assert bool(list(requirements.replacing(JOB, project))) is replaces


@pytest.mark.parametrize(
    "text, asks",
    [
        ("mine", True),
        ("torch>=2", False),
        ("-r base.txt", True),
        ("--editable ./mine", True),
        ("-i https://x.y/simple\n--pre", False),
        ("--no-index\n--find-links wheels\nmine", False),
    ],
)
def test_asks_an_index(text: str, asks: bool, project: Project) -> None:
    project.requirements.write_text(text + "\n")
    assert requirements.asks_an_index(JOB.replace(environment={}), project) is asks


def test_a_lock_is_whole_and_fresh(project: Project, files: Path, tmp_path: Path) -> None:
    """Each package has a pin with a hash, and requirements.in asks for no other."""
    part = wheel(files, "part", "1.0")
    whole = wheel(files, "whole", "1.0", "part", "torch>=2")
    settings = {"PIP_INDEX_URL": index(tmp_path / "simple", part, whole)}
    lock = f"{hashed(whole)}\n{hashed(part)}"
    source = project.requirements.with_suffix(".in")
    source.write_text("whole\n")
    assert not judged(project, lock, **settings)
    [found] = judged(project, hashed(whole), **settings)
    assert found.level == "error" and found.problem.startswith("part,")
    assert "make lock" in found.hint
    for text in ("whole\npart>=2", "whole\nabsent"):
        source.write_text(text)
        [found] = judged(project, lock, **settings)
        assert found.level == "error" and "make lock" in found.hint
    index(tmp_path / "simple", wheel(files, "late", "1.0"))
    source.write_text("whole\nlate")
    [found] = judged(project, lock, **settings)
    assert found.level == "error" and found.problem.startswith("late,")
    assert not judged(project, "whole\npart", **settings)  # without hashes it is no lock


def test_a_wheel_of_src_has_the_hash_of_its_line(project: Project, simple: str) -> None:
    path = wheel(project.src / "wheels", "mine", "1.0", "torch>=2")
    line = "./wheels/mine-1.0-py3-none-any.whl"
    assert not judged(project, hashed(path, line), PIP_INDEX_URL=simple)
    other = wheel(project.src / "wheels", "mine", "2.0")
    changed = judged(project, hashed(other, line), offline=True)
    absent = judged(project, "./src/wheels/mine-1.0-py3-none-any.whl", offline=True)
    for found in (changed, absent):
        assert levels(found) == ["error", "skipped"]


def test_a_line_without_a_hash_among_others_is_an_error(project: Project) -> None:
    """As pip, which takes the hash of an address, too."""
    pin = f"one==1.0 --hash=sha256:{'0' * 64}\n"
    address = f"three @ https://example.com/three-1.0-py3-none-any.whl#sha256={'0' * 64}\n"
    project.requirements.write_text(f"{pin}two==1.0\n{address}")
    [found] = requirements.unhashed(JOB, project)
    assert found.level == "error" and found.problem.startswith('"two==1.0" has no hash')
    for text in ("one==1.0\ntwo==1.0\n", pin):
        project.requirements.write_text(text)
        assert not [*requirements.unhashed(JOB, project)]


def test_the_pins_of_both_lightnings_are_equal(project: Project) -> None:
    (project.src / "model.py").write_text("import lightning as L\n")
    pin = f"%s==2.6.6 --hash=sha256:{'0' * 64}\n"
    for name, version, expected in (("lightning", "2.6.6", 0), ("lightning", "2.7.0", 1)):
        line = (pin % name).replace("2.6.6", version)
        project.requirements.write_text(line + pin % "pytorch-lightning")
        assert not list(imports.imports(JOB, project))
        found = list(requirements.lightnings(JOB, project))
        assert levels(found) == ["error"] * expected
    assert "write lightning==2.6.6 in src/requirements.in" in found[0].hint


def test_an_import_that_nobody_provides_is_an_error(project: Project) -> None:
    (project.src / "models").mkdir()
    (project.src / "models" / "__init__.py").touch()
    (project.src / "data.py").write_text("import json, models.small, PIL\nimport torch.nn\n")
    (project.src / "train.py").write_text(
        "import data\nfrom rich import print\nfrom . import models\n"
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n"
        "def main():\n    import yaml.nodes\n    import wandb\n"
    )
    project.requirements.write_text(f"rich==14.3.4 --hash=sha256:{'0' * 64}\n")
    found = list(imports.imports(JOB, project))
    assert levels(found) == ["error", "error"]
    assert "name the package that has wandb in" in found[0].hint
    assert "name PyYAML in" in found[1].hint
    project.requirements.write_text("rich\n")  # names no package that rich requires
    assert not list(imports.imports(JOB, project))


def test_a_module_whose_package_may_be_one_that_is_not_installed_here_is_no_error(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the GitHub workflow: of the lock's packages, only what preflight needs is installed."""
    (project.src / "data.py").write_text("import boto3, pytorch_lightning, yaml, wandb\n")
    lock = ["pyyaml==6.0.3", "pytorch-lightning==2.6.5"]
    project.requirements.write_text("".join(f"{pin} --hash=sha256:{'0' * 64}\n" for pin in lock))
    here = {"boto3": ["boto3"]}
    monkeypatch.setattr(imports, "installed", lambda: Installed({"boto3": []}, here))
    found = list(imports.imports(JOB, project))
    assert levels(found) == ["skipped", "skipped"]
    assert "imports wandb" in found[0].problem and "imports yaml" in found[1].problem
    assert not any("requirements.in" in each.hint for each in found)
    here |= {"yaml": ["PyYAML"], "wandb": ["wandb"]}
    (found_here,) = imports.imports(JOB, project)
    assert found_here.level == "error" and "name wandb in" in found_here.hint


@pytest.mark.parametrize(
    ("text", "problem"),
    [(b"import torch\ndef f(:\n", "(line 2)"), (b"a = 1\0", "null bytes"), (b"\xff", "")],
)
def test_a_file_that_is_not_python_is_an_error(project: Project, text, problem) -> None:
    """Also without a lock and in an unknown image."""
    (project.src / "data.py").write_bytes(text)
    project.requirements.write_text("rich\n")
    own = JOB.replace(image="123456789012.dkr.ecr.us-east-1.amazonaws.com/team:1")
    for job in (JOB, own):
        (found,) = imports.imports(job, project)
        assert (found.level, found.key) == ("error", "src/data.py")
        assert found.problem.startswith("is not Python: ") and problem in found.problem


def test_a_file_of_another_encoding_is_python(project: Project) -> None:
    (project.src / "data.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    assert not list(imports.imports(JOB, project))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_shipped_lock_pins_no_package_of_the_image(profile: str) -> None:
    job = JOB.replace(image=profile)
    assert requirements.is_locked(PROJECT)
    assert len(requirements.names(job, PROJECT)) > 50
    for check in (requirements.replacing, requirements.wheels, imports.imports):
        assert not list(check(job, PROJECT))
