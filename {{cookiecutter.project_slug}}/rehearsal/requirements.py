"""What the container would install on top of its own torch, told from the packages here; nothing is installed."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from rehearsal.checks import Check

OWNED = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)$")  # the image's build, with its CUDA, NCCL, EFA and SMDDP


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
    problems: list[str] = []
    wanted: list[tuple[str, Requirement]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        try:
            wanted.append(("requirements.txt", Requirement(text)))
        except InvalidRequirement:
            problems.append(f"{text!r} cannot be judged here; name packages and versions only")
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        asker, requirement = wanted.pop()
        key = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if OWNED.match(key):
            if asker == "requirements.txt":
                problems.append(f"{requirement} replaces the image's build; remove it")
            elif key == "torch" and not requirement.specifier.contains(image_torch, prereleases=True):
                problems.append(f"{asker} needs {requirement}, the image has {image_torch}; pin another version of it")
            continue
        try:
            here = distribution(key)
        except PackageNotFoundError:
            problems.append(f"{requirement} ({asker}) is not installed here; run make setup")
            continue
        if not requirement.specifier.contains(here.version, prereleases=True):
            problems.append(f"{asker} asks for {requirement}, but {here.version} is what was rehearsed; run make setup")
        found[key] = here.version
        if (key, extras := frozenset(requirement.extras)) in seen:
            continue
        seen.add((key, extras))
        for text in here.requires or []:
            child = Requirement(text)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                child.marker = None
                wanted.append((f"{key} {here.version}", child))
    listing = sorted(f"{package}=={version}" for package, version in found.items())
    said = "; ".join(problems) or f"torch {image_torch} stays; {len(listing)} packages would be installed"
    return listing, Check(name, "failed" if problems else "held", said)
