"""src/ is Python; what it imports is in requirements.txt, the image, src/ or Python itself."""

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from smlightning_sagemaker.findings import Finding, error, skipped
from smlightning_sagemaker.job import images, source_archive
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project


def imports(job: Job, project: Project) -> Iterator[Finding]:
    """Files that are not Python; modules that neither the lock nor the image has.

    A requirements.txt without hashes does not name what its packages require, so nothing is
    compared with it. The package of a module is known only if it is installed here.
    """
    files = list(source_archive.listed(project.src))
    trees: dict[str, ast.Module] = {}
    for path in files:
        if path.suffix == ".py" and not path.is_symlink():
            key = path.relative_to(project.src.parent).as_posix()
            try:
                trees[key] = ast.parse(path.read_bytes())
            except (ValueError, SyntaxError, RecursionError) as failure:
                yield not_python(key, failure)
    if not requirements.is_locked(project) or images.profile(job) is None:
        return
    locked = requirements.names(job, project)
    listed = {*locked, *requirements.packages_of(job)}
    known = {*sys.stdlib_module_names, *images.MODULES.values()}
    if images.profile(job) is None:  # an image of one's own may lack what an index has
        known -= {"numpy", "PIL", "pip", "setuptools", "wheel"}
    known |= {path.relative_to(project.src).parts[0].removesuffix(".py") for path in files}
    providers, here = installed()
    not_here = locked - here  # any of them may provide a module of another name, as pillow does PIL
    for key, tree in trees.items():
        for module in sorted(imported_modules(tree) - known):
            known.add(module)  # once
            packages = providers.get(module, [module])
            if listed & {canonicalize_name(package) for package in packages}:
                continue
            if module not in providers and not_here:
                problem = f"imports {module}; no package that is installed here provides it"
                yield skipped(key, problem, "run make preflight, which installs requirements.txt")
                continue
            # A module without a provider has no package's name: a stranger may own the equal one.
            package = packages[0] if module in providers else f"the package that has {module}"
            problem = f"imports {module}, which neither requirements.txt nor the image has"
            yield error(key, problem, f"name {package} in src/requirements.in, and run make lock")


Installed = tuple[Mapping[str, list[str]], frozenset[str]]


def installed() -> Installed:
    """The packages that have each module, and the names of all packages, in this environment."""
    places = [place for place in map(Path, sys.path) if any(place.glob("*.*-info"))]
    return _installed(tuple((place, place.stat().st_mtime_ns) for place in places))


@functools.lru_cache(maxsize=1)
def _installed(places: tuple[tuple[Path, int], ...]) -> Installed:
    """Reads files of every package, for a second; each installation changes a place's time."""
    names = frozenset(canonicalize_name(each.name) for each in distributions())
    return packages_distributions(), names


def not_python(key: str, failure: Exception) -> Finding:
    """The finding for a file that Python cannot parse."""
    reason = str(failure)
    if isinstance(failure, SyntaxError):
        reason = f"{failure.msg} (line {failure.lineno})"
    return error(key, f"is not Python: {reason}", "correct it: training cannot import it")


def imported_modules(tree: ast.Module) -> set[str]:
    """Top-level modules that a file needs; an import in `try` or `if` may be optional."""
    found: set[str] = set()
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif not isinstance(node, ast.Try | ast.If):
            nodes += ast.iter_child_nodes(node)
    return found
