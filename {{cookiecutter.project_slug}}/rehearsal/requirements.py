"""What the container would install on top of its own torch, told from the packages here; nothing is installed."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from launch.requirements import OF_THE_IMAGE
from rehearsal.checks import Check


def check(path: Path, image_torch: str) -> tuple[list[str], Check]:
    """Packages as name==version, and whether the image's torch survives `pip install -r`.

    The versions are this environment's. A requirement that they do not meet is a failure too: something else would
    be installed than was rehearsed.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    name = "requirements-keep-torch"
    if not path.is_file():
        return [], Check(name, "skipped", "no requirements.txt in the source folder")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in path.read_text(encoding="utf-8").splitlines())
    wanted = [(path.name, line, frozenset({""})) for line in lines if line]  # who asks, for what, for which extras
    problems: list[str] = []
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        asker, line, extras = wanted.pop()
        if (line, extras) in seen:
            continue
        seen.add((line, extras))
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            problems.append(f"{line!r} cannot be judged here; name packages and versions only")
            continue
        key = canonicalize_name(requirement.name)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if OF_THE_IMAGE.match(key):
            if asker == path.name:
                problems.append(f"{requirement} replaces the image's build; remove it")
            elif key == "torch" and not requirement.specifier.contains(image_torch, prereleases=True):
                problems.append(f"{asker} needs {requirement}, the image has {image_torch}; pin another version of it")
            continue
        try:
            installed = distribution(key)
        except PackageNotFoundError:
            problems.append(f"{requirement} ({asker}) is not installed here; run make setup")
            continue
        if not requirement.specifier.contains(installed.version, prereleases=True):
            problems.append(f"{asker} asks for {requirement}, but {installed.version} ran here; run make setup")
        found[key] = installed.version
        below = frozenset({"", *requirement.extras})
        wanted += [(f"{key} {installed.version}", child, below) for child in installed.requires or []]
    listing = sorted(f"{package}=={version}" for package, version in found.items())
    said = "; ".join(problems) or f"the image's torch {image_torch} stays; {len(listing)} packages would be installed"
    return listing, Check(name, "failed" if problems else "passed", said)
