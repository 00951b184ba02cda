"""Preflight resolves requirements.txt as pip does in the image: by the job's settings, not by this
machine's. Every index here is a folder of the test's own.
"""

import hashlib
import http.server
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from small_job import GOOD, PROJECT
from smlightning_sagemaker.findings import Finding
from smlightning_sagemaker.job.images import PROFILES
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

JOB = GOOD.replace(distribution="torch_distributed", image="current")  # torch 2.13.0, Python 3.12


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
    named = requirements.replacing(job, project)
    return [*named, *requirements.resolved(job, project, offline=offline)]


def levels(found: list[Finding]) -> list[str]:
    return [finding.level for finding in found]


def test_preflight_finds_the_requirement_behind_which_another_torch_hides(
    project: Project, simple: str
) -> None:
    assert not judged(project, "modest", PIP_INDEX_URL=simple)
    [found] = judged(project, "hungry", PIP_INDEX_URL=simple)
    assert found.level == "error"
    assert (
        "torch 99.0, which hungry requires, would replace the image's torch 2.13.0" in found.problem
    )


@pytest.mark.parametrize("place", ["file", "variables"])
def test_settings_of_this_machines_pip_do_not_change_what_is_found(
    place: str, project: Project, simple: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("torch<99\nmodest<1\n")
    mine = wheel(tmp_path / "mine", "absent", "1.0")
    settings = {
        "constraint": tmp_path / "constraints.txt",
        "find-links": tmp_path / "mine",
        "extra-index-url": index(tmp_path / "mine-simple", mine),
        "target": tmp_path / "elsewhere",
        "user": True,
        "no-binary": ":all:",
        "no-deps": True,
        "require-hashes": True,
        "platform": "win_amd64",
        "report": tmp_path / "report.json",
        "quiet": 3,
    }
    if place == "variables":
        for name, value in settings.items():
            monkeypatch.setenv(f"PIP_{name.upper().replace('-', '_')}", str(value))
    else:
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (tmp_path / "pip.conf").write_text("\n".join(["[install]", *lines]))
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    [hungry] = judged(project, "modest\nhungry", PIP_INDEX_URL=simple)
    assert "torch 99.0, which hungry requires" in hungry.problem
    [absent] = judged(project, "absent", PIP_INDEX_URL=simple)
    assert absent.level == "error" and "absent" in absent.problem


def test_the_index_is_the_jobs_and_else_the_one_that_this_machine_reaches(
    project: Project, simple: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = index(tmp_path / "mirror", wheel(tmp_path / "more", "mirrored", "1.0"))
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {mirror}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert not judged(project, "mirrored")
    assert levels(judged(project, "mirrored", PIP_INDEX_URL=simple)) == ["error"]
    assert not judged(project, "mirrored\nmodest", PIP_EXTRA_INDEX_URL=simple)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # this machine may ask none
    assert levels(judged(project, "mirrored")) == ["skipped"]


def test_the_jobs_constraints_count(project: Project, simple: str) -> None:
    (project.src / "constraints.txt").write_text("modest<1\n")
    constrained = judged(project, "modest", PIP_INDEX_URL=simple, PIP_CONSTRAINT="constraints.txt")
    assert levels(constrained) == ["error"]


class Answers(http.server.BaseHTTPRequestHandler):
    """An index whose path begins with the status of its answers."""

    def do_GET(self) -> None:
        self.send_response(int(unquote(self.path).split("/")[1]))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_index_that_is_not_reached_from_here_is_no_error(project: Project, address: str) -> None:
    assert levels(judged(project, "mine", PIP_INDEX_URL=f"{address}/404/simple")) == ["error"]
    in_the_file = judged(project, f"--index-url {address}/403/simple\nmine")
    assert levels(in_the_file) == ["skipped"]
    closed = judged(project, "mine", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert levels(closed) == ["skipped"]
    git = judged(project, "mine @ git+http://127.0.0.1:9/mine.git")
    assert levels(git) == ["skipped"]
    token = judged(project, "mine", CA_REPOSITORY_ARN="arn:aws:codeartifact:…")
    assert levels(token) == ["skipped"]
    in_the_container = judged(project, "mine", PIP_FIND_LINKS="/opt/ml/input/data/wheels")
    assert levels(in_the_container) == ["skipped"]


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


def test_markers_of_what_a_package_requires_are_those_of_the_image(
    project: Project, files: Path
) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    profile = next(each for each in PROFILES.values() if each.python != here)
    conditions = {
        "there": f'python_version == "{profile.python}"',
        "here": f'python_version == "{here}"',
        "linux": 'platform_machine == "x86_64"',
        "mac": 'sys_platform == "darwin"',
        "windows": 'os_name == "nt"',
    }
    for name in conditions:
        wheel(files, name, "1.0")
    wheel(files, "whole", "1.0", *(f"{name} ; {text}" for name, text in conditions.items()))
    project.requirements.write_text("whole\n")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(files)}
    found = requirements.resolve(JOB.replace(environment=environment), project, profile, {})
    installed = {item["metadata"]["name"] for item in found.installs}
    assert installed == {"whole", "there", "linux"}


def test_wheels_in_src_are_judged_without_any_index(project: Project) -> None:
    wheel(project.src / "wheels", "mine", "1.0", "torch>=2")
    asks_none = "--no-index\n--find-links wheels\n"
    assert not judged(project, asks_none + "mine", offline=True)
    assert levels(judged(project, asks_none + "absent", offline=True)) == ["error"]
    for text, asks in ((asks_none + "mine", False), ("torch>=2", False), ("mine", True)):
        project.requirements.write_text(text + "\n")
        assert requirements.asks_an_index(JOB.replace(environment={}), project) is asks, text


@pytest.mark.parametrize(
    "text, asks",
    [
        ("-r base.txt", True),
        ("-rbase.txt", True),
        ("--requirement=base.txt", True),
        ("--requirement 'base.txt'", True),
        ("-r more/nested.txt", True),
        ("-r cycle.txt", False),
        ("-r absent.txt", True),
        ("-e git+https://x.y/z", True),
        ("--editable ./mine", True),
        ("--unknown", True),
        ("-i https://x.y/simple\n-f wheels\n-c base.txt\n--pre\n--require-hashes", False),
        ("--no-index -f wheels\n-r base.txt", False),
        ("-r no-index.txt\nmine", False),
        ("--no-index --index-url https://x.y\nmine", False),
        ("--no-index -f https://x.y\nmine", True),
        ("--no-index\n-e git+https://x.y/z", True),
    ],
)
def test_included_files_and_addresses_ask_an_index_and_options_do_not(
    text: str, asks: bool, project: Project
) -> None:
    files = {
        "base.txt": "mine",
        "more/nested.txt": "-r ../base.txt",
        "cycle.txt": "-r requirements.txt\ntorch>=2",
        "no-index.txt": "--no-index",
        "requirements.txt": text,
    }
    for name, content in files.items():
        (project.src / name).parent.mkdir(exist_ok=True)
        (project.src / name).write_text(content + "\n")
    job = JOB.replace(environment={})
    assert requirements.asks_an_index(job, project) is asks
    offline = list(requirements.resolved(job, project, offline=True)) if asks else []
    assert levels(offline) == ["skipped"] * asks


def test_a_torch_that_an_included_file_names_is_found(project: Project) -> None:
    (project.src / "base.txt").write_text("torch==2.4.0\n")
    project.requirements.write_text("-r base.txt\n")
    assert levels(list(requirements.replacing(JOB, project))) == ["error"]


def test_a_package_that_is_only_a_source_archive_is_no_error_and_the_others_are_judged(
    project: Project, simple: str, files: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "simple"
    index(
        folder,
        archive(files, "oldfashioned", "4.9.3"),
        wheel(files, "oldfashioned", "4.11.0"),
        wheel(files, "newer", "1.0", "oldfashioned==4.9.*"),
    )
    [found] = judged(project, "newer", PIP_INDEX_URL=simple)
    assert found.level == "skipped" and "oldfashioned 4.9.3" in found.problem
    both = judged(project, "newer\nhungry", PIP_INDEX_URL=simple)
    assert sorted(levels(both)) == ["error", "skipped"]
    assert levels(judged(project, "oldfashioned==5", PIP_INDEX_URL=simple)) == ["error"]


def test_a_package_that_this_machine_cannot_build_is_no_error(
    project: Project, simple: str
) -> None:
    (project.src / "mine").mkdir()
    (project.src / "mine" / "setup.py").write_text("raise SystemExit('needs a GPU')\n")
    (project.src / "mine" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
    )
    (project.src / "mine" / "own.py").write_text("raise SystemExit('needs a GPU')\n")
    assert levels(judged(project, "./mine", PIP_INDEX_URL=simple)) == ["skipped"]


def hashed(path: Path, line: str = "") -> str:
    """A line of a requirements.txt with the hash of a file: its name and version, or another."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{line or '=='.join(path.name.split('-')[:2])} --hash=sha256:{digest}"


def test_a_package_without_its_hash_is_found_before_pip_in_the_container_rejects_it(
    project: Project, files: Path, simple: str
) -> None:
    part = wheel(files, "part", "1.0")
    whole = wheel(files, "whole", "1.0", "part", "torch>=2")
    index(files.parent / "simple", part, whole)
    settings = {"PIP_INDEX_URL": simple}
    assert not judged(project, f"--require-hashes\n{hashed(whole)}\n{hashed(part)}", **settings)
    [found] = judged(project, hashed(whole), **settings)
    assert found.level == "error" and "part 1.0" in found.problem
    wrong = hashed(part, "whole==1.0") + "\n" + hashed(part)
    [found] = judged(project, wrong, **settings)
    assert found.level == "error" and "whole 1.0" in found.problem
    assert not judged(project, "whole\npart", **settings)


def test_hashes_do_not_make_pip_download_packages(
    project: Project, files: Path, tmp_path: Path
) -> None:
    """The index has the metadata of a wheel that is no archive."""
    broken = archive(files, "whole", "1.0").rename(files / "whole-1.0-py3-none-any.whl")
    metadata = "Metadata-Version: 2.1\nName: whole\nVersion: 1.0\n"
    (files / f"{broken.name}.metadata").write_text(metadata)
    page = tmp_path / "simple" / "whole" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{broken.as_uri()}" data-core-metadata="true">{broken.name}</a>')
    project.requirements.write_text(f"whole==1.0 --hash={SOME}\n")
    job = JOB.replace(environment={"PIP_INDEX_URL": (tmp_path / "simple").as_uri()})
    found = requirements.resolve(job, project, PROFILES["current"], {})
    assert [item["metadata"]["name"] for item in found.installs] == ["whole"]


def test_wheels_of_src_and_source_archives_may_have_hashes(
    project: Project, files: Path, simple: str, tmp_path: Path
) -> None:
    path = wheel(project.src / "wheels", "mine", "1.0")
    line = "./wheels/mine-1.0-py3-none-any.whl"
    assert not judged(project, hashed(path, line), PIP_INDEX_URL=simple)
    # The toolkit runs pip in src/.
    from_the_root = judged(project, "./src/wheels/mine-1.0-py3-none-any.whl", PIP_INDEX_URL=simple)
    assert levels(from_the_root) == ["error"]
    source = archive(files, "oldfashioned", "4.9.3")
    index(tmp_path / "simple", source)
    [found] = judged(project, hashed(source, "oldfashioned==4.9.3"), PIP_INDEX_URL=simple)
    assert found.level == "skipped" and "oldfashioned 4.9.3" in found.problem


SOME = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "asked, pinned, problem",
    [
        (None, f"rich==14.3.4 --hash={SOME}", ""),
        (None, "rich==14.3.4\ntqdm", ""),
        (None, f"rich==14.3.4 --hash={SOME}\ntqdm==4.67.3", "tqdm==4.67.3"),
        (None, f"rich==14.3.4 --hash={SOME}\ntqdm==4.67.3 ; sys_platform == 'win32'", ""),
        (None, f"rich==14.3.4 --hash={SOME}\ntorch>=2", ""),  # the image has it
        ("rich[jupyter]>=14  # why", f"rich==14.3.4 \\\n    --hash={SOME}\n    # via x", ""),
        ("rich>=15", f"rich==14.3.4 --hash={SOME}", "rich>=15"),
        ("rich>=15", "rich==14.3.4", ""),  # no longer compiled from it
        ("rich\nwandb", f"rich==14.3.4 --hash={SOME}", "wandb"),
        ("rich\nwandb ; python_version < '3.12'", f"rich==14.3.4 --hash={SOME}", ""),
    ],
)
def test_without_an_index_a_file_is_compared_with_what_it_was_compiled_from(
    asked: str | None, pinned: str, problem: str, project: Project
) -> None:
    project.requirements.write_text(pinned + "\n")
    if asked:
        project.requirements.with_suffix(".in").write_text(asked + "\n")
    found = list(requirements.locked(JOB, project))
    assert levels(found) == ["error"] * bool(problem)
    assert all(problem in each.problem and "make lock" in each.cure for each in found)


def test_the_shipped_file_is_compiled_and_pins_nothing_of_the_image() -> None:
    for profile in PROFILES:
        job = JOB.replace(image=profile)
        assert requirements.hashes(job, PROJECT)
        assert not [*requirements.replacing(job, PROJECT), *requirements.locked(job, PROJECT)]
        pins = dict(requirements.wanted(job, PROJECT.requirements))
        assert all("--hash=" in line for line in pins) and len(pins) > 50
