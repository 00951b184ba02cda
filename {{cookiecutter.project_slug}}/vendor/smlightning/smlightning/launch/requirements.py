"""Whether `pip install -r requirements.txt` in the image leaves the image's torch alone.

Before a job is sent, pip's own resolver is asked what it would install. A rehearsal judges the
packages that it ran with (rehearsal/installed_requirements.py), by the same `OF_THE_IMAGE`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from smlightning.launch import images
from smlightning.launch.findings import Finding, error, skipped
from smlightning.launch.images import Profile
from smlightning.launch.job import Job
from smlightning.project import Project

# What the image has built for its CUDA, NCCL, EFA and SMDDP, by exact name; pip would take PyPI's
# build. The libraries of CUDA are those that torch requires; others of NVIDIA's packages, as
# nvidia-ml-py or nvidia-dali-cuda120, replace nothing.
CUDA_LIBRARIES = """
cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn cufft cufile curand cusolver cusparse cusparselt
nccl nvjitlink nvshmem nvtx
""".split()  # noqa: SIM905
OF_THE_IMAGE = re.compile(
    rf"(torch|torchvision|torchaudio|triton|pytorch-triton|nvidia-({'|'.join(CUDA_LIBRARIES)})"
    r"(-cu\d+)?)$",
    re.I,
)
GLIBC = range(17, 36)  # 2.17 to 2.35, which is Ubuntu 22.04's
NO_NETWORK = re.compile(r"(?i)connection (broken|error)|timed out")


def lists(project: Project, package: str) -> bool:
    """Whether requirements.txt names the package, or with "" any."""
    return any(re.match(rf"\s*{package}\b", line) for line in lines(project.requirements))


def lines(path: Path) -> list[str]:
    """The lines of a requirements.txt; none where there is no such file."""
    if not path.is_file():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def named(job: Job, project: Project) -> Iterator[Finding]:
    """Lines of requirements.txt that ask for another build than the one that the image brings."""
    profile = images.profile(job)
    packages = profile.packages if profile else {}
    for line in lines(project.requirements):
        package = canonicalize_name(re.split(r"[^\w.-]", line.strip())[0])
        if OF_THE_IMAGE.match(package) and not satisfied(line, packages.get(package)):
            problem = f'"{line.strip()}" would replace {torch_of_image(job)}'
            yield error(key_of(project), problem, "remove that line: the image brings it")


def satisfied(line: str, version: str | None) -> bool:
    """Whether a version that is in the image meets a line of requirements.txt; None: there is none.

    pip leaves an installed package that meets a requirement as it is.
    """
    if version is None:
        return False
    try:
        requirement = Requirement(re.sub(r"(^|\s)#.*", "", line).strip())
    except InvalidRequirement:
        return False
    return not requirement.url and requirement.specifier.contains(version, prereleases=True)


def key_of(project: Project) -> str:
    """The file as findings name it."""
    return f"{project.requirements.parent.name}/{project.requirements.name}"


def torch_of_image(job: Job) -> str:
    profile = images.profile(job)
    version = profile.torch if profile else ""
    return f"the image's torch {version}, and with it CUDA, NCCL, EFA and SMDDP"


def resolved(job: Job, project: Project, *, offline: bool = False) -> Iterator[Finding]:
    """pip's resolver finds a set of packages, and one that leaves the image's torch alone.

    Args:
        job: of job.toml.
        project: whose requirements.txt is resolved.
        offline: no index is asked; pip runs only where it is told to ask none (PIP_NO_INDEX).
    """
    key, profile = key_of(project), images.profile(job)
    if not project.requirements.is_file() or any(named(job, project)):
        return
    if profile is None:
        problem = "not resolved: the image's versions are not known"
        yield skipped(key, problem, "see that it does not replace torch")
        return
    if offline and not os.environ.get("PIP_NO_INDEX"):
        problem = "not resolved: pip would ask a package index"
        yield skipped(key, problem, "run preflight without --offline")
        return
    if not find_spec("pip"):
        problem = "not resolved: this Python has no pip"
        yield skipped(key, problem, "run make preflight, whose environment has it")
        return
    try:
        installs = resolve(project.requirements, profile)
    except subprocess.CalledProcessError as refusal:
        yield unresolved(key, profile, refusal.stderr)
        return
    replaced = [item["metadata"] for item in installs if brought_by_image(item["metadata"])]
    if replaced:
        package = replaced[0]
        asker = asker_of(package["name"], [item["metadata"] for item in installs])
        asks = f", as {asker} asks," if asker else ""
        yield error(
            key,
            f"{package['name']} {package['version']}{asks} would replace {torch_of_image(job)}",
            "pin a version that accepts the image's torch",
        )


def brought_by_image(package: dict[str, Any]) -> bool:
    return bool(OF_THE_IMAGE.match(package["name"]))


def asker_of(name: str, packages: list[dict[str, Any]]) -> str:
    """The first of the packages that requires the named one; empty for none."""
    requirement = re.compile(rf"{re.escape(name)}\b")
    for package in packages:
        if any(requirement.match(line) for line in package.get("requires_dist", [])):
            return str(package["name"])
    return ""


def unresolved(key: str, profile: Profile, output: str) -> Finding:
    """Why pip found no set of packages.

    Args:
        key: of the finding.
        profile: of the image.
        output: pip's standard error.
    """
    if NO_NETWORK.search(output):
        return skipped(key, "pip reached no package index", "run preflight again with a network")
    messages = [
        line.removeprefix("ERROR: ") for line in output.splitlines() if "WARNING" not in line
    ]
    reason = " ".join(messages)[-400:]
    problem = f"pip finds no set for Python {profile.python}: {reason}"
    return error(key, problem, "change the pins")


def resolve(path: Path, profile: Profile) -> list[dict[str, Any]]:
    """What pip would install into the image: its report's entries. Only metadata is downloaded.

    pip is shown an environment that holds the packages that are known to be in the image, and
    resolves for the image's Python and Linux. Environment markers are those of the interpreter that
    runs this, since pip has no option for them.

    Raises:
        CalledProcessError: there is no solution, or no package index.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder)
        python = empty_environment(environment, profile)
        report = environment / "report.json"
        command = [
            *(sys.executable, "-m", "pip", "--python", str(python)),
            *("--disable-pip-version-check", "install", "--dry-run", "--quiet"),
            *("--report", str(report), "--requirement", str(path)),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={profile.python}"),
            *(f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC),
            *("--retries=1", "--timeout=20"),
        ]
        # A path in the file is meant from the project's folder.
        subprocess.run(command, capture_output=True, text=True, cwd=path.parents[1], check=True)
        installs: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return installs


def empty_environment(folder: Path, profile: Profile) -> Path:
    """An environment that holds by name what is known to be in the image; its Python."""
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    site = next(folder.glob("lib/python*/site-packages"), folder / "Lib/site-packages")
    for name, version in profile.packages.items():
        package = site / f"{name.replace('-', '_')}-{version}.dist-info"
        package.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (package / "METADATA").write_text(metadata)
        (package / "RECORD").touch()  # else pip cannot tell how to replace it
    pythons = (folder / "bin/python", folder / "Scripts/python.exe")
    return next(path for path in pythons if path.exists())
