"""Packages that are installed here, but neither in requirements.txt nor in the image."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from smlightning_sagemaker.installed import installed
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.requirements_file import INCLUDES, lines, requirement_of


def hidden(job: Job, source: Path) -> tuple[list[str], list[str], str]:
    """Modules and packages of this environment that a host lacks, by name, and a note on them.

    A host has what the image and the source folder's requirements.txt list, and what these packages
    require here. Modules of the folder are not among the hidden ones, whatever their names. Nothing
    is hidden if the image is not AWS's, or if a line of requirements.txt gives no name.
    """
    profile = images.profile(job)
    if profile is None:
        return [], [], "no package is hidden from the hosts: the image is not AWS's"
    listed = [Requirement(name) for name in {*images.MODULES, *profile.packages}]
    for line in lines(source / "requirements.txt"):
        requirement = requirement_of(line)
        if requirement:
            listed.append(requirement)
        elif INCLUDES.match(line) or not line.startswith("-"):
            note = f'no package is hidden from the hosts: "{line}" in requirements.txt has no name'
            return [], [], note
    found = installed()
    on_host = with_requirements(listed, found.requires)
    modules = {
        module
        for module, packages in found.providers.items()
        if on_host.isdisjoint(map(canonicalize_name, packages))
    }
    own = {path.stem for path in source.iterdir()}
    packages = sorted(found.requires.keys() - on_host)
    note = "packages of this environment that neither requirements.txt nor the image lists"
    return sorted(modules - own), packages, f"hidden from the hosts: {len(packages)} {note}"


def with_requirements(
    listed: Iterable[Requirement], requires: Mapping[str, Iterable[str]]
) -> set[str]:
    """The names of the packages and of what they require here, with the extras that are asked."""
    found: set[tuple[str, str]] = set()
    left = [*listed]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for needed in map(Requirement, requires.get(name, ())):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left.append(needed)
    return {name for name, _ in found}
