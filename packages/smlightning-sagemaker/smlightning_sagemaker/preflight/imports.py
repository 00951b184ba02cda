"""src/ is Python; what it imports is in requirements.txt, the image, src/ or the image's Python."""

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.metadata import distributions

from packaging.utils import canonicalize_name

from smlightning_sagemaker.findings import Finding, error, skipped, warning
from smlightning_sagemaker.installed import installed
from smlightning_sagemaker.job import images, source_archive
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

OPTIONS = "src/options.py"
SLOW = frozenset(
    ["torch", "torchvision", "lightning", "pytorch_lightning", "transformers", "datasets", "pandas"]
)
# Syntax of Python 3.12 to 3.14: type parameters, aliases, quotes within f-strings, except without
# parentheses.
NEWER = re.compile(
    r"^\s*(type \w|(async )?def \w+\[|class \w+\[|except [\w.]+,)|\b[fFrRtT]{1,2}[\"']"
)
# A package's own tests, which no job imports; test_data.py in src/ itself may be a module.
TEST = re.compile(r".*/(tests?/.*|conftest\.py)")
IMPORTS = (ast.Import, ast.ImportFrom)


def imports(job: Job, project: Project) -> Iterator[Finding]:
    """Files that are not Python; modules that neither the lock nor the image has.

    A requirements.txt without hashes does not name what its packages require, so nothing is
    compared with it. The package of a module is known only if it is installed here.
    """
    files = list(source_archive.listed(project.src))
    profile, here = images.profile(job), sys.version_info[:2]
    image = (3, profile.minor) if profile else here
    trees: dict[str, ast.Module] = {}
    for path in files:
        if path.suffix == ".py" and not path.is_symlink():
            key = path.relative_to(project.src.parent).as_posix()
            if TEST.fullmatch(key):
                continue
            try:
                trees[key] = ast.parse(path.read_bytes(), feature_version=min(image, here))
            except (ValueError, SyntaxError, RecursionError) as failure:
                yield not_python(key, failure, may_be_newer=image > here)
    at_once: list[ast.stmt] = []
    if OPTIONS in trees:
        at_once += [each for each in trees[OPTIONS].body if isinstance(each, IMPORTS)]
    slow = {each.partition(".")[0] for each in imported_modules(ast.Module(at_once, []))} & SLOW
    if slow:
        problem = f"imports {', '.join(sorted(slow))}, for which --help and each command wait"
        yield warning(OPTIONS, problem, "import it in the function that uses it")
    if not requirements.is_locked(project) or profile is None:
        return
    locked = requirements.names(job, project)
    listed = {*locked, *profile.packages}
    known = profile.standard_library | {*images.MODULES.values()}
    known |= {path.relative_to(project.src).parts[0].removesuffix(".py") for path in files}
    found = installed()
    providers = found.providers
    # Each may have a module of another name, as pillow has PIL.
    elsewhere = locked - found.requires.keys()
    seen: set[str] = set()
    for key, tree in trees.items():
        for name in sorted(imported_modules(tree)):
            module, packages = provided(name, providers)
            if module in seen or name.partition(".")[0] in known:
                continue
            seen.add(module)
            if listed & {canonicalize_name(package) for package in packages or [module]}:
                continue
            if not packages and elsewhere:
                problem = f"imports {module}; no package that is installed here provides it"
                yield skipped(key, problem, "run make preflight, which installs requirements.txt")
                continue
            # A module without a provider has no package's name: a stranger may own the equal one.
            package = packages[0] if packages else f"the package that has {module}"
            problem = f"imports {module}, which neither requirements.txt nor the image has"
            yield error(key, problem, f"name {package} in src/requirements.in, and run make lock")


def provided(name: str, providers: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """The module of a dotted name that one package brings, and the packages here that have it.

    Several packages may each bring a part of a namespace package, as of google (PEP 420).
    """
    parts = name.split(".")
    owners = providers.get(parts[0], [])
    files = (
        {each: own_files(each, parts[0]) for each in owners} if is_shared(parts[0], owners) else {}
    )
    if not any(files.values()):
        return parts[0], owners
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length])
        wanted = (f"{path}.", f"{path}/" if length == len(parts) else f"{path}/__init__.")
        found = [each for each, own in files.items() if any(f.startswith(wanted) for f in own)]
        if found:
            return ".".join(parts[:length]), found
    return ".".join(parts[:2]), []


def is_shared(module: str, owners: list[str]) -> bool:
    """Whether it is a namespace package, or several packages here have files of it."""
    spec = PathFinder.find_spec(module)
    return len({*owners}) > 1 or bool(spec and spec.origin is None)


@functools.lru_cache(maxsize=100)
def own_files(package: str, module: str) -> list[str]:
    """The files of a package in this environment that are below a top-level module."""
    files = [file for each in distributions(name=package) for file in each.files or []]
    return [file.as_posix() for file in files if file.parts[0].partition(".")[0] == module]


def not_python(key: str, failure: Exception, *, may_be_newer: bool) -> Finding:
    """The finding for a file that Python cannot parse; the image's may be newer than this one."""
    reason = str(failure)
    if isinstance(failure, SyntaxError):
        reason = f"{failure.msg} (line {failure.lineno})"
        if may_be_newer and NEWER.search(failure.text or ""):
            problem = f"Python {sys.version_info.major}.{sys.version_info.minor} cannot read it"
            return skipped(key, f"{problem}: {reason}", "run preflight on the image's Python")
    return error(key, f"is not Python: {reason}", "correct it: training cannot import it")


def imported_modules(tree: ast.Module) -> set[str]:
    """Modules that a file needs, with the names that it imports from them.

    An import in `try` or `if` may be optional.
    """
    found: set[str] = set()
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif not isinstance(node, ast.Try | ast.If):
            nodes += ast.iter_child_nodes(node)
    return found
