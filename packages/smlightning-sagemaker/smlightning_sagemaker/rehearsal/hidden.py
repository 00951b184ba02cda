"""What is installed here and missing on a host: neither requirements.txt nor the image has it."""

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions, packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

# What AWS's images hold, next to what an image's profile lists.
OF_IMAGES = frozenset(
    """
    torch torchvision torchaudio boto3 mpi4py sagemaker-training sagemaker-pytorch-training
    pip setuptools wheel smlightning
    """.split()  # noqa: SIM905
)

LOCKED = re.compile(r"(?m)^([\w.-]+)(?:\[[^\]]*\])?==")  # names at the start of lines


def hidden(job: Job, project: Project) -> tuple[list[str], list[str]]:
    """Modules and packages of this environment that a host lacks, by name.

    Modules of src/ are not among them, whatever their names. Nothing is hidden if requirements.txt
    has no hashes, and so does not name all, or if the image is not AWS's.
    """
    profile, lock = images.profile(job), project.requirements
    text = lock.read_text(encoding="utf-8", errors="replace") if lock.is_file() else ""
    if profile is None or "--hash" not in text:
        return [], []
    requires, providers = installed(tuple(sys.path))
    listed = {*OF_IMAGES, *profile.packages, *LOCKED.findall(text)}
    on_host = with_requirements(map(canonicalize_name, listed), requires)
    modules = {
        module
        for module, packages in providers.items()
        if on_host.isdisjoint(map(canonicalize_name, packages))
    }
    own = {path.stem for path in project.src.iterdir()}
    return sorted(modules - own), sorted(requires.keys() - on_host)


@functools.cache
def installed(path: tuple[str, ...]) -> tuple[dict[str, list[str]], Mapping[str, list[str]]]:
    """What each package here requires, and the packages of each module; ``path`` is sys.path."""
    requires: dict[str, list[str]] = {}
    for each in distributions():
        requires[canonicalize_name(each.name)] = each.requires or []
    return requires, packages_distributions()


def with_requirements(names: Iterable[str], requires: Mapping[str, Iterable[str]]) -> set[str]:
    """The packages, and what they require here, without extras."""
    found: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for requirement in map(Requirement, requires.get(name, ())):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(requirement.name))
    return found
