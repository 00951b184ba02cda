"""Checks that `pip install -r requirements.txt` in the image keeps the image's torch.

Before a job is sent, pip's own resolver computes what it would install.
"""

import ast
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from smlightning_sagemaker.findings import Finding, error, skipped
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.images import Profile
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

# Packages that the image has built for its CUDA, NCCL, EFA and SMDDP; pip would install PyPI's
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

# Settings of this machine's pip by which it reaches a package index. Its other settings
# (constraint, find-links, extra-index-url, pre, …) change which packages pip finds, and the image
# has none of them. A pip that uses no index needs its find-links.
ROUTE = (
    *("cert", "client-cert", "proxy", "trusted-host", "keyring-provider", "cache-dir"),
    *("index-url", "no-index"),  # often a mirror, without which this machine reaches no index
)
# Variables of [environment] that change which packages the container's pip finds. Its other
# variables concern the container's own files and network.
OF_THE_JOB = frozenset(
    f"PIP_{name}"
    for name in """
    INDEX_URL EXTRA_INDEX_URL FIND_LINKS NO_INDEX TRUSTED_HOST CONSTRAINT PRE NO_DEPS PREFER_BINARY
    REQUIRE_HASHES UPGRADE UPGRADE_STRATEGY FORCE_REINSTALL IGNORE_INSTALLED
    IGNORE_REQUIRES_PYTHON UPLOADED_PRIOR_TO
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
NO_INDEX = re.compile(
    r"(?i)connection (broken|error)|timed out|Could not fetch URL \S+ (?!404)"
    r"|HTTP error (?!404)|Could not resolve host|unable to access"
)
# Errors about the requirements themselves, in the container as here.
NO_SET = re.compile(
    r"No matching distribution found|ResolutionImpossible|conflicting dependencies"
    r"|is not a supported wheel|requires a different Python|the file does not exist"
    r"|Invalid requirement|Could not open requirements file"
)
# Options on a line without a package. A line with another option, as -e, installs something.
OPTION = re.compile(
    r"-[ifc]|--(index-url|extra-index-url|find-links|no-index|pre|trusted-host|constraint|no-binary"
    r"|only-binary|prefer-binary|require-hashes|use-feature)(?=[\s=]|$)"
)
HASH = re.compile(r"--hash[= ](\w+:[0-9a-fA-F]+)")
INCLUDED = re.compile(r"(?=-).*?(?<!\S)(?:-r|--requirement(?=[\s=]))[\s=]*(.+)")
INDEX_ADDRESS = re.compile(r"(?<!\S)(-i|--(extra-)?index-url)[\s=]*\S+")
ADDRESS = re.compile(r"(?<!\w)(?!file:)[a-z][a-z+]*://")  # not of this machine
MISSING = re.compile(
    r"(?m)(?:No matching distribution found for|depends on|requested) (.+?)(?: \(from .*)?$"
)
# How pip's log reports a source archive that --only-binary excludes.
SOURCE_ARCHIVE = re.compile(r"No sources permitted for \S+: (\S+)")


@dataclass(frozen=True)
class Resolution:
    """The result of pip's resolver for the image.

    Attributes:
        installs: the entries of pip's report.
        built: packages, with versions, that exist only as source archives; pip would build them.
    """

    installs: list[dict[str, Any]]
    built: list[str]


class Unresolved(Exception):
    """pip has found no set of packages.

    Attributes:
        errors: its standard error.
        log: its log, with the answers of package indexes.
    """

    def __init__(self, errors: str, log: str) -> None:
        super().__init__(errors)
        self.errors = errors
        self.log = log


def lines(path: Path) -> list[str]:
    """The lines of a requirements.txt as pip reads them; none if there is no such file.

    Lines that a backslash continues are joined; comments and empty lines are left out. A line that
    includes a file is replaced by that file's lines, and stays if there is no such file.
    """
    return list(_lines(path, set())) if path.is_file() else []


def _lines(path: Path, read: set[Path]) -> Iterator[str]:
    """The lines of a file and of those that it includes, each file once, as `read` says."""
    read.add(path.resolve())
    text = re.sub(r"\\\r?\n", " ", path.read_text(encoding="utf-8", errors="replace"))
    for written in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", written).strip()
        included = INCLUDED.match(line)
        file = path.parent / included[1].strip("\"'") if included else path
        if included and file.is_file():
            if file.resolve() not in read:
                yield from _lines(file, read)
        elif line:
            yield line


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


def markers(python: str) -> dict[str, str]:
    """The values of environment markers in an image with this Python, as "3.12"."""
    full = f"{python}.99"  # images carry a late patch release; which one is not known
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
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


def lists(job: Job, project: Project, package: str) -> bool:
    """Whether requirements.txt names the package for the job's image."""
    found = (found for _, found in wanted(job, project.requirements))
    return any(canonicalize_name(requirement.name) == package for requirement in found)


def replacing(job: Job, project: Project) -> Iterator[Finding]:
    """Lines of requirements.txt that would replace a package of the image."""
    packages = packages_of(job)
    for line, found in wanted(job, project.requirements):
        package = canonicalize_name(found.name)
        if OF_THE_IMAGE.match(package) and not satisfied(found, packages.get(package)):
            problem = f'"{line}" would replace {torch_of_image(job)}'
            yield error(key_of(project), problem, "remove that line: the image has it")


def satisfied(wanted: Requirement, version: str | None) -> bool:
    """Whether the image's version (None: it has none) satisfies a requirement.

    pip keeps an installed package that satisfies a requirement.
    """
    if version is None or wanted.url:
        return False
    return wanted.specifier.contains(version, prereleases=True)


def packages_of(job: Job) -> Mapping[str, str]:
    profile = images.profile(job)
    return profile.packages if profile else {}


def asks_an_index(job: Job, project: Project) -> bool:
    """Whether pip in the container would ask a package index, or another address."""
    written, packages = lines(project.requirements), packages_of(job)
    options = [word for line in written if OPTION.match(line) for word in line.split()]
    if "--no-index" in options or job.environment.get("PIP_NO_INDEX"):
        elsewhere = [*written, job.environment.get("PIP_FIND_LINKS", "")]
        return any(ADDRESS.search(INDEX_ADDRESS.sub("", line)) for line in elsewhere)
    unnamed = any(not OPTION.match(line) and not requirement_of(line) for line in written)
    return unnamed or any(
        not satisfied(found, packages.get(canonicalize_name(found.name)))
        for _, found in wanted(job, project.requirements)
    )


def hashes(job: Job, project: Project) -> dict[str, set[str]]:
    """Package → hashes that requirements.txt allows; empty if pip requires none.

    As soon as one line has a hash, pip installs only packages with one.
    """
    allowed: dict[str, set[str]] = {}
    for line, found in wanted(job, project.requirements):
        allowed.setdefault(canonicalize_name(found.name), set()).update(HASH.findall(line))
    return allowed if any(allowed.values()) else {}


def locked(job: Job, project: Project) -> Iterator[Finding]:
    """Errors if some packages lack a hash, or lines of requirements.in a pinned version."""
    allowed = hashes(job, project)
    if not allowed:
        return
    key, source = key_of(project), project.requirements.with_suffix(".in")
    cure = f"name it in {source.parent.name}/{source.name} and run make lock"
    packages, pins = packages_of(job), {}
    for line, found in wanted(job, project.requirements):
        name = canonicalize_name(found.name)
        pins[name] = next((each.version for each in found.specifier if each.operator == "=="), None)
        if not allowed[name] and not satisfied(found, packages.get(name)):
            problem = f'"{line}" has no hash, other lines have one, so pip installs nothing'
            yield error(key, problem, f"{cure}, or remove every hash")
    for line, asked in wanted(job, source):
        name = canonicalize_name(asked.name)
        pin = pins.get(name)
        if name not in pins and OF_THE_IMAGE.match(name):
            yield error(key, f'"{line}" of {source.name} is in the image', "remove that line")
        elif name not in pins or (pin and not asked.specifier.contains(pin, prereleases=True)):
            problem = f'"{line}" of {source.name} does not allow the pinned version ({pin})'
            if not pin:
                problem = f'"{line}" of {source.name} is not pinned'
            yield error(key, problem, "run make lock")


def key_of(project: Project) -> str:
    """The file as findings name it."""
    return f"{project.requirements.parent.name}/{project.requirements.name}"


def torch_of_image(job: Job) -> str:
    profile = images.profile(job)
    version = profile.torch if profile else ""
    return f"the image's torch {version}, and with it CUDA, NCCL, EFA and SMDDP"


def resolved(job: Job, project: Project, *, offline: bool = False) -> Iterator[Finding]:
    """pip's resolver finds a set of packages that keeps the image's torch.

    Args:
        job: of job.toml.
        project: whose requirements.txt is resolved.
        offline: connect to no index; pip runs only if the job's own pip would need none.
    """
    key, profile = key_of(project), images.profile(job)
    if not project.requirements.is_file() or any(replacing(job, project)):
        return
    if profile is None:
        problem = "not resolved: the image's versions are not known"
        yield skipped(key, problem, "check that it does not replace torch")
        return
    way = {} if offline else route()
    if reason := unresolvable(job, project, offline, way):
        yield skipped(key, *reason)
        return
    try:
        resolution = resolve(job, project, profile, way)
    except Unresolved as failure:
        yield unresolved(key, profile, failure)
        return
    for package in resolution.built:
        problem = f"{package} has no wheel for the image, so pip builds it in the container"
        yield skipped(key, problem, "check that it builds there, and does not replace torch")
    yield from unhashed(hashes(job, project), resolution, key)
    packages = [item["metadata"] for item in resolution.installs]
    replaced = [package for package in packages if OF_THE_IMAGE.match(package["name"])]
    if replaced:
        package = replaced[0]
        name = canonicalize_name(package["name"])
        asker = asker_of(name, packages, profile.packages.get(name))
        asks = f", which {asker} requires," if asker else ""
        yield error(
            key,
            f"{package['name']} {package['version']}{asks} would replace {torch_of_image(job)}",
            "pin a version that accepts the image's torch",
        )


def unhashed(allowed: dict[str, set[str]], resolution: Resolution, key: str) -> Iterator[Finding]:
    """The first package that pip would reject in the container for its hash.

    image_pip.py turns pip's own check off, which needs every file.

    Args:
        allowed: as `hashes` returns it.
        resolution: pip's.
        key: of the finding.
    """
    if not allowed:
        return
    built = {package.partition(" ")[0] for package in resolution.built}
    for item in resolution.installs:
        name, version = canonicalize_name(item["metadata"]["name"]), item["metadata"]["version"]
        digests = item["download_info"].get("archive_info", {}).get("hashes", {})
        known = {f"{kind}:{digest}" for kind, digest in digests.items()}
        given = allowed.get(name, set())
        # An index may give a digest of another kind, which cannot be compared.
        comparable = not given or any(text.partition(":")[0] in digests for text in given)
        if name not in built and comparable and not given & known:
            problem = f"{name} {version} has no hash in the file, or another one"
            yield error(key, problem, "run make lock, or remove every hash")
            return


def unresolvable(
    job: Job, project: Project, offline: bool, way: Mapping[str, str]
) -> tuple[str, str] | None:
    """Problem and cure if pip cannot resolve on this machine as in the container.

    Args:
        job: of job.toml.
        project: whose requirements.txt is resolved.
        offline: connect to no index.
        way: this machine's `route`.
    """
    asks = asks_an_index(job, project)
    if offline and asks:
        return "not resolved: pip would ask a package index", "run preflight without --offline"
    if asks and "PIP_NO_INDEX" in way:
        problem = "not resolved: the configuration of this machine's pip forbids package indexes"
        return problem, "run preflight where pip may ask the job's index"
    if not find_spec("pip"):
        cure = "run make preflight, whose environment has it"
        return "not resolved: this Python has no pip", cure
    if job.environment.get(CODEARTIFACT):
        problem = "not resolved: CodeArtifact requires a token, which only the container gets"
        return problem, "check that it does not replace torch"
    values = of_the_job(job.environment).values()
    if any(CONTAINER_ONLY in text for text in (*lines(project.requirements), *values)):
        problem = f"not resolved: found a path in {CONTAINER_ONLY}, which exists in containers only"
        return problem, "write paths inside src/ relative to src/"
    return None


def asker_of(name: str, packages: list[dict[str, Any]], version: str | None) -> str:
    """The first package that requires a package in another version; empty for none.

    Args:
        name: of a package that would be installed.
        packages: that would be installed.
        version: of that package in the image; None: it has none.
    """
    for package in packages:
        for line in package.get("requires_dist", []):
            required = Requirement(line)
            if canonicalize_name(required.name) == name and not satisfied(required, version):
                return str(package["name"])
    return ""


def unresolved(key: str, profile: Profile, failure: Unresolved) -> Finding:
    """The finding if pip finds no set of packages; an error only if the container fails too.

    An older pip may not support this use, and then proves nothing about the requirements.
    """
    messages = [
        line.removeprefix("ERROR: ")
        for line in failure.errors.splitlines()
        if line.strip() and "WARNING" not in line and "(from versions: " not in line
    ]
    if NO_INDEX.search(failure.errors + failure.log):
        problem = "not resolved: this machine did not reach a package index of the job"
        return skipped(key, problem, "run preflight again on a machine that reaches it")
    if not NO_SET.search(failure.errors):
        problem = f"not resolved: pip failed on this machine: {' '.join(messages)[-200:]}"
        return skipped(key, problem, "check that it installs in the image")
    reason = " ".join(messages)[-400:]
    problem = f"pip finds no versions that fit together on Python {profile.python}: {reason}"
    return error(key, problem, "change the pins")


def resolve(job: Job, project: Project, profile: Profile, way: Mapping[str, str]) -> Resolution:
    """The packages that pip would install into the image. Only metadata is downloaded.

    pip runs in an environment with the packages that are known to be in the image, and resolves for
    the image's Python, Linux and the job's variables, in src/ as the training toolkit does. An
    empty wheel replaces a package that exists only as a source archive, which is code; what such a
    package requires stays unknown. An older version with a wheel comes before a newer one without.

    Args:
        job: of job.toml.
        project: whose requirements.txt is resolved.
        profile: the image's.
        way: this machine's `route`.

    Raises:
        Unresolved: there is no solution, or no package index.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        report, log, links = (folder / name for name in ("report.json", "log", "links"))
        links.mkdir()
        command = [
            *pip_of_image(empty_environment(folder / "environment", profile), profile.python),
            *(f"--log={log}", "install", "--dry-run", "--report", str(report)),
            *(f"--find-links={links}", "--requirement", project.requirements.name),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={profile.python}"),
            *(f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC),
        ]
        built: dict[str, str] = {}
        while True:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=project.src,
                env=variables(job.environment, way),
                check=False,
            )
            if ended.returncode == 0:
                installs = json.loads(report.read_text(encoding="utf-8"))["install"]
                return Resolution(installs, [" ".join(package) for package in built.items()])
            text = log.read_text("utf-8", "replace") if log.exists() else ""
            found = source_archives(ended.stderr, text)
            if NO_INDEX.search(ended.stderr) or found.keys() <= built.keys():
                raise Unresolved(ended.stderr, text)
            for name, version in found.items():
                write_wheel(links, name, version)
            built |= found


def pip_of_image(python: Path, version: str) -> list[str]:
    """The command that runs this machine's pip in an environment, as on the image's Python."""
    spec = find_spec("pip")
    assert spec and spec.origin
    return [
        *(str(python), "-I", "-X", "utf8", str(Path(__file__).with_name("image_pip.py"))),
        *(str(Path(spec.origin).parents[1]), json.dumps(markers(version))),
        *("--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=20"),
    ]


def variables(environment: Mapping[str, str], way: Mapping[str, str]) -> dict[str, str]:
    """The environment of a pip that resolves for a container, and not for this machine.

    Args:
        environment: the container's, whose PIP_* variables count.
        way: this machine's `route`.
    """
    of_the_machine = {
        name: value for name, value in os.environ.items() if not name.upper().startswith("PIP_")
    }
    return {
        **of_the_machine,
        "LC_ALL": "C.UTF-8",  # for pip's messages
        "PIP_CONFIG_FILE": os.devnull,  # no file of the machine, of the user and of an environment
        **way,
        **of_the_job(environment),
    }


def of_the_job(environment: Mapping[str, str]) -> dict[str, str]:
    """A container's variables that change which packages its pip finds."""
    return {name: environment[name] for name in sorted(OF_THE_JOB & environment.keys())}


def reaching(settings: Mapping[str, str]) -> dict[str, str]:
    """The variables of pip, among these, by which this machine reaches packages."""
    names = {f"PIP_{name.upper().replace('-', '_')}" for name in ROUTE}
    if settings.get("PIP_NO_INDEX"):
        names.add("PIP_FIND_LINKS")
    return {name: settings[name] for name in names & settings.keys()}


def route() -> dict[str, str]:
    """Variables of pip with which this machine reaches packages, from pip's files and variables."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = {}
    for section in ("global", "install", ":env:"):  # the later one wins
        for name, value in re.findall(rf"(?m)^{section}\.(.+?)=(.+)$", listed):
            settings[f"PIP_{name.upper().replace('-', '_')}"] = str(ast.literal_eval(value))
    return reaching(settings)


def source_archives(errors: str, log: str) -> dict[str, str]:
    """Packages that pip missed, with the newest version, that exist only as source archives."""
    links = {urlsplit(link).path.rpartition("/")[2] for link in SOURCE_ARCHIVE.findall(log)}
    archives = []
    for name in links:
        with suppress(InvalidSdistFilename):
            archives.append(parse_sdist_filename(unquote(name)))
    found: dict[str, str] = {}
    for text in MISSING.findall(errors):
        missed = requirement_of(text)
        if missed and not missed.url:
            package = canonicalize_name(missed.name)
            versions = [version for name, version in archives if name == package]
            fitting = list(missed.specifier.filter(versions))
            if fitting:
                found[package] = str(max(fitting))
    return found


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel without modules that requires nothing."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",  # without it pip cannot tell how to replace an installed package
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(f"{stem}.dist-info/{file}", text)
    return path


def empty_environment(folder: Path, profile: Profile) -> Path:
    """Create an environment with the image's known packages, without files; return its Python."""
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    site = next(folder.glob("lib/python*/site-packages"), folder / "Lib/site-packages")
    for name, version in profile.packages.items():
        with zipfile.ZipFile(write_wheel(folder, name, version)) as wheel:
            wheel.extractall(site)
    pythons = (folder / "bin/python", folder / "Scripts/python.exe")
    return next(path for path in pythons if path.exists())
