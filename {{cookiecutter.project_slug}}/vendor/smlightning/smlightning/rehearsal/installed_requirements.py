"""What the container would install on top of its own torch, told from the packages here.

Nothing is installed and nothing is asked of an index: see launch/requirements.py for that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from smlightning.launch.images import packages_with
from smlightning.launch.requirements import OF_THE_IMAGE, OPTION, lines, requirement_of
from smlightning.rehearsal.checks import FAILED, PASSED, SKIPPED, Check

NAME = "requirements-keep-torch"


@dataclass(frozen=True)
class Wanted:
    """A line of requirements.txt, or of a package's own requirements."""

    line: str
    asker: str  # the file's name, or the package with its version
    extras: frozenset[str]  # those of the asker, which decide whether the line counts


@dataclass
class Resolution:
    """What would be installed, and what speaks against it."""

    image_torch: str
    versions: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def requirements_keep_torch(path: Path, image_torch: str) -> tuple[list[str], Check]:
    """Packages as name==version, and whether the image's torch survives ``pip install -r``.

    The versions are this environment's. A requirement that they do not meet is a failure, too:
    something else would be installed than was rehearsed.
    """
    if not path.is_file():
        return [], Check(NAME, SKIPPED, "no requirements.txt in the source folder")
    resolution = Resolution(image_torch)
    waiting = list(lines_of(path))
    seen = set()
    while waiting:
        wanted = waiting.pop()
        if (wanted.line, wanted.extras) not in seen:
            seen.add((wanted.line, wanted.extras))
            waiting += resolve(wanted, resolution, from_file=wanted.asker == path.name)
    packages = sorted(f"{name}=={version}" for name, version in resolution.versions.items())
    if resolution.problems:
        return packages, Check(NAME, FAILED, "; ".join(resolution.problems))
    stays = f"the image's torch {image_torch} stays"
    return packages, Check(NAME, PASSED, f"{stays}; {len(packages)} packages would be installed")


def lines_of(path: Path) -> Iterator[Wanted]:
    """The file's lines that may name a package; options, as --find-links, only say where it is."""
    for line in lines(path):
        if not OPTION.match(line):
            yield Wanted(line, path.name, frozenset({""}))


def resolve(wanted: Wanted, resolution: Resolution, from_file: bool) -> list[Wanted]:
    """Judge one line, and return what its package asks for in turn."""
    problems = resolution.problems
    requirement = requirement_of(wanted.line)
    if requirement is None:
        cure = "name packages and versions only"
        problems.append(f"{wanted.line!r} cannot be judged here; {cure}")
        return []
    if not applies(requirement, wanted.extras):
        return []
    name = canonicalize_name(requirement.name)
    if OF_THE_IMAGE.match(name):
        problems += image_problems(requirement, name, wanted.asker, resolution, from_file)
        return []
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        problems.append(f"{requirement} ({wanted.asker}) is not installed here; run make setup")
        return []
    if not requirement.specifier.contains(installed.version, prereleases=True):
        here = f"{installed.version} ran here"
        problems.append(f"{wanted.asker} asks for {requirement}, but {here}; run make setup")
    resolution.versions[name] = installed.version
    extras = frozenset({"", *requirement.extras})
    asker = f"{name} {installed.version}"
    return [Wanted(line, asker, extras) for line in installed.requires or []]


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether its marker holds here, for one of the extras that the asker was asked for with."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def image_problems(
    requirement: Requirement, name: str, asker: str, resolution: Resolution, from_file: bool
) -> list[str]:
    """What speaks against a package that the image brings in a build of its own."""
    version = packages_with(resolution.image_torch).get(name)
    if version is None:
        return [f"{requirement} replaces the image's build; remove it"] if from_file else []
    if requirement.specifier.contains(version, prereleases=True) and not requirement.url:
        return []  # pip leaves what is there
    cure = "remove it" if from_file else "pin another version of it"
    return [f"{asker} needs {requirement}, the image has {version}; {cure}"]
