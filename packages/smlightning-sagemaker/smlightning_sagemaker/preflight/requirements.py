"""Checks that `pip install -r requirements.txt` works in the image and keeps the image's torch.

`make lock` writes the file. Here its lines are read, and uv resolves it for the image's Python.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from smlightning_sagemaker.findings import Finding, error, skipped, warning
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.images import Profile
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.requirements_file import INCLUDES, lines, requirement_of
from smlightning_sagemaker.project import Project

PLATFORM = "x86_64-manylinux_2_28"  # below the glibc of all of AWS's images

# Variables of [environment] that the container's pip reads, and uv's option for the same.
UV_OPTIONS = {
    "PIP_INDEX_URL": "--default-index",
    "PIP_EXTRA_INDEX_URL": "--index",
    "PIP_FIND_LINKS": "--find-links",
    "PIP_CONSTRAINT": "--constraints",
}
# This machine's variables of uv that do not change which packages uv finds.
UV_KEPT = frozenset(
    """
    UV_CACHE_DIR UV_HTTP_TIMEOUT UV_INSECURE_HOST UV_KEYRING_PROVIDER UV_NATIVE_TLS UV_OFFLINE
    UV_SYSTEM_CERTS
    """.split()  # noqa: SIM905
)
# The training toolkit (modules.py) then gives pip an index with a token.
CODEARTIFACT = "CA_REPOSITORY_ARN"
CONTAINER_ONLY = "/opt/ml/"
# Variables that pip reads before train.py starts and reads its secrets.
BEFORE_TRAINING = re.compile(rf"(PIP|UV)_\w+|{CODEARTIFACT}")
PROXY = re.compile(r"(?i)(https?|all)_proxy")
WITHOUT_LOGIN = (
    f"use a repository of CodeArtifact ({CODEARTIFACT} in [environment]), wheels in src/, or an "
    "index in your VPC that asks for no login"
)
HASH_OF_URL = re.compile(r"#(.*&)?sha(256|384|512)=")  # which pip takes for one, too
HASH = re.compile(r"--hash[= ](\w+:[0-9a-fA-F]+)")

# Messages of uv.
INSTALLED = re.compile(r"(?m)^ \+ ([\w.-]+)==(\S+)")
UNREACHED = re.compile(
    r"(?i)Failed to (fetch|download|clone)|error sending request|network was disabled|Git operation"
    r"|\b(401|403|407)\b"
)
UNBUILT = re.compile(r"(?i)has no (usable )?wheels|building (from )?source|build.* is disabled")


def markers(python: str) -> dict[str, str]:
    """The values of environment markers in an image with this Python, as "3.12"."""
    return {
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "python_full_version": f"{python}.99",  # a late patch release; which one is not known
        "python_version": python,
        "sys_platform": "linux",
    }


def wanted(job: Job, path: Path) -> Iterator[tuple[str, Requirement]]:
    """Lines of a file that name a package, and whose marker holds in the job's image."""
    profile = images.profile(job)
    python = profile.python if profile else f"{sys.version_info.major}.{sys.version_info.minor}"
    for line in lines(path):
        found = requirement_of(line)
        if found and (found.marker is None or found.marker.evaluate(markers(python))):
            yield line, found


def names(job: Job, project: Project) -> set[str]:
    """The packages that requirements.txt names for the job's image."""
    listed = wanted(job, project.requirements)
    return {canonicalize_name(requirement.name) for _, requirement in listed}


def satisfied(wanted: Requirement, packages: Mapping[str, str]) -> bool:
    """Whether the image's packages satisfy a requirement: pip then installs nothing for it."""
    version = packages.get(canonicalize_name(wanted.name))
    if version is None or wanted.url:
        return False
    return wanted.specifier.contains(version, prereleases=True)


def packages_of(job: Job) -> Mapping[str, str]:
    profile = images.profile(job)
    return profile.packages if profile else {}


def asks_an_index(job: Job, project: Project) -> bool:
    """Whether pip in the container would ask a package index."""
    written, packages = lines(project.requirements), packages_of(job)
    if job.environment.get("PIP_NO_INDEX") or any("--no-index" in line for line in written):
        return False
    return any(INCLUDES.match(line) for line in written) or any(
        not satisfied(found, packages) for _, found in wanted(job, project.requirements)
    )


def is_locked(project: Project) -> bool:
    """Whether `make lock` or another tool has written hashes; pip then requires one of each."""
    return any(HASH.search(line) for line in lines(project.requirements))


def key_of(project: Project) -> str:
    """The file as findings name it."""
    return f"{project.requirements.parent.name}/{project.requirements.name}"


def torch_of_image(job: Job) -> str:
    version = packages_of(job).get("torch", "")
    return f"the image's torch {version}, and with it CUDA, NCCL, EFA and SMDDP"


def replacing(job: Job, project: Project) -> Iterator[Finding]:
    """Lines of requirements.txt that would replace a package of the image."""
    for line, found in wanted(job, project.requirements):
        if images.is_own_build(found.name) and not satisfied(found, packages_of(job)):
            problem = f'"{line}" would replace {torch_of_image(job)}'
            yield error(key_of(project), problem, "remove that line: the image has it")


def unlocked(job: Job, project: Project) -> Iterator[Finding]:
    """Each line of requirements.in is in a requirements.txt that `make lock` wrote."""
    source = project.requirements.with_suffix(".in")
    listed = names(job, project)
    key = f"{source.parent.name}/{source.name}"
    for line, found in wanted(job, source) if is_locked(project) else ():
        name = canonicalize_name(found.name)
        if images.is_own_build(name):
            problem = f'"{line}" is a package of the image, and make lock leaves it out'
            hint = "remove that line; pin what your machine needs in pyproject.toml, group train"
            yield warning(key, problem, hint)
        elif name not in listed:
            yield error(key, f'{key_of(project)} has no package for "{line}"', "run make lock")


def unhashed(job: Job, project: Project) -> Iterator[Finding]:
    """No line lacks a hash where another one has it: pip then installs nothing.

    https://pip.pypa.io/en/stable/topics/secure-installs/#hash-checking-mode
    """
    for line, _ in wanted(job, project.requirements) if is_locked(project) else ():
        if not HASH.search(line) and not HASH_OF_URL.search(line):
            hint = "move it to src/requirements.in, and run make lock"
            yield error(key_of(project), f'"{line}" has no hash, and other lines have', hint)


def lightnings(job: Job, project: Project) -> Iterator[Finding]:
    """The pins of lightning and pytorch-lightning are equal, as smlightning.one_lightning needs."""
    listed = [found for _, found in wanted(job, project.requirements)]
    pins = {str(canonicalize_name(each.name)): str(each.specifier) for each in listed}
    found, expected = pins.get("lightning"), pins.get("pytorch-lightning")
    if found and expected and found != expected:
        problem = f"lightning{found} is not the version of pytorch-lightning{expected}"
        hint = f"write lightning{expected} in src/requirements.in, and run make lock"
        yield error(key_of(project), problem, hint)


def wheels(job: Job, project: Project) -> Iterator[Finding]:
    """Wheels that requirements.txt names by a path in src/: each is there, with its hash."""
    for line, found in wanted(job, project.requirements):
        if not found.url or "://" in found.url:
            continue
        path = project.src / found.url
        if not path.is_file():
            problem = f"{found.url} is not in {project.src.name}/"
            yield error(key_of(project), problem, "put it there, or remove its line")
        elif is_locked(project) and _digest(path) not in HASH.findall(line):
            problem = f"{found.url} does not have the hash of its line"
            yield error(key_of(project), problem, "run make lock")


def _digest(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def resolved(job: Job, project: Project, *, offline: bool = False) -> Iterator[Finding]:
    """uv finds a set of packages for the image that keeps the image's torch.

    Args:
        job: of job.toml.
        project: whose requirements.txt is resolved.
        offline: connect to no index.
    """
    key, profile = key_of(project), images.profile(job)
    if not project.requirements.is_file() or any(replacing(job, project)):
        return
    if reason := unresolvable(job, project, offline):
        yield skipped(key, *reason)
        return
    assert profile
    ended = dry_run(job, project, profile)
    if ended.returncode:
        yield unresolved(key, profile, ended.stderr)
        return
    listed = names(job, project) if is_locked(project) else set()
    for name, version in INSTALLED.findall(ended.stderr):
        if images.is_own_build(name):
            problem = f"{name} {version}, which a package requires, would replace "
            hint = "pin a version that accepts the image's torch"
            yield error(key, problem + torch_of_image(job), hint)
        elif listed and canonicalize_name(name) not in listed:
            problem = f"{name}, which requirements.in or a package requires, is not pinned"
            yield error(key, problem, "run make lock")


def unresolvable(job: Job, project: Project, offline: bool) -> tuple[str, str] | None:
    """Problem and hint if uv cannot resolve here what pip installs in the container."""
    if images.profile(job) is None:
        return "not resolved: the image is not AWS's", "check that it does not replace torch"
    if offline:
        return "not resolved: uv would ask a package index", "run preflight without --offline"
    if not uv():
        return "not resolved: uv is not installed", "run make preflight, which installs it"
    written = [*lines(project.requirements), *job.environment.values()]
    if job.environment.get(CODEARTIFACT) or any(CONTAINER_ONLY in text for text in written):
        problem = "not resolved: only the container has CodeArtifact's token and /opt/ml"
        return problem, "check that it does not replace torch"
    return None


def uv() -> str | None:
    """The program, of this environment or on PATH."""
    here = str(Path(sys.executable).parent)
    return shutil.which("uv", path=os.pathsep.join([here, os.environ.get("PATH", os.defpath)]))


def dry_run(job: Job, project: Project, profile: Profile) -> subprocess.CompletedProcess[str]:
    """A dry run of uv: on standard error, the packages it would install into the image.

    It downloads only metadata. If requirements.txt has hashes, uv resolves requirements.in with it,
    which finds a package that was added later. uv runs in src/, as pip in the container does.
    """
    source = project.requirements.with_suffix(".in")
    files = [project.requirements, *([source] if is_locked(project) and source.exists() else [])]
    settings = {"PIP_INDEX_URL": index_of_this_machine(), **job.environment}
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary)
        for name, version in profile.packages.items():
            write_metadata(target, name, version)
        command = [
            *(str(uv()), "pip", "install", "--dry-run", "--no-config", "--color=never"),
            *("--target", temporary, "--python", sys.executable),
            *("--python-version", profile.python, "--python-platform", PLATFORM),
            *("--only-binary=:all:", "--index-strategy=unsafe-best-match"),  # as pip chooses
            *(f"--requirements={file.name}" for file in files),
            *(["--no-index"] if settings.get("PIP_NO_INDEX") else []),
        ]
        for name, option in UV_OPTIONS.items():
            command += [f"{option}={value}" for value in settings.get(name, "").split()]
        of_this_machine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("UV_") or name in UV_KEPT
        }
        return subprocess.run(
            command,
            cwd=project.src,
            env={**of_this_machine, "UV_HTTP_RETRIES": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )


def index_of_this_machine() -> str:
    """The index that uv or pip uses here, often a mirror; uv does not read pip's settings."""
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def write_metadata(folder: Path, name: str, version: str) -> None:
    """Make a package seem installed in a folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "RECORD").touch()


def unresolved(key: str, profile: Profile, message: str) -> Finding:
    """The finding if uv finds no set of packages; an error only if the container fails too."""
    reason = " ".join(message.partition("error:")[2].split())[-400:]
    if UNREACHED.search(message):
        problem = "not resolved: this machine did not reach a package index of the job"
        return skipped(key, problem, "run preflight again on a machine that reaches it")
    if UNBUILT.search(message):
        problem = f"a package has no wheel for the image, so pip builds it there: {reason}"
        return skipped(key, problem, "check that it builds there, and does not replace torch")
    problem = f"no versions fit together on Python {profile.python}: {reason}"
    return error(key, problem, "run make lock, or change the pins")
