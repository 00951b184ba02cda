"""Imports of the package go down only, none is of the owner's modules, and lines are short."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import smlightning

PACKAGE = Path(smlightning.__file__).parent
PROJECT = PACKAGE.parents[2]
MODULES = sorted(path for path in PACKAGE.glob("**/*.py") if "stubs" not in path.parts)
OWNERS = {path.stem for path in (PROJECT / "src").glob("*.py")}
# A room imports itself and rooms of the lines above its own.
LAYERS = (
    {"terminal"},
    {"errors", "stored_secrets"},
    {"options", "files", "project", "hub", "outline", "serving", "tensors"},
    {"torch_files", "attention"},
    {"cluster", "adapters"},
    {"pretrained"},
    {"data"},
    {"training"},
    {"checkpoints", "reports"},
    {"run", "entry"},
    {"launch", "ray_serving"},  # Ray is in its inference image alone
    {"ports"},
    {"rehearsal"},
    {"testing"},
    {"__main__"},
)
TRAINING = set().union(*LAYERS[:8]) | {"__init__"}  # what a job's archive holds


def room(path: Path) -> str:
    """The subpackage of a file, or the module that it is."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def name(path: Path) -> str:
    """The name under which a file is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what a file imports, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> set[str]:
    return set(imported(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_the_package_imports_none_of_the_owners_modules(path: Path) -> None:
    assert {"train", "options", "data", "model", "predict", "dist"} <= OWNERS
    assert not {used for used in imports_of(path) if used.partition(".")[0] in OWNERS}


def may_import(here: str) -> set[str]:
    """The rooms that a file of this room may import."""
    if here == "__init__":
        return set()
    (level,) = (number for number, rooms in enumerate(LAYERS) if here in rooms)
    return {here, "__version__"}.union(*LAYERS[:level])


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_go_down_only(path: Path) -> None:
    used = {used.split(".")[1] for used in imports_of(path) if used.startswith("smlightning.")}
    assert used <= may_import(room(path))


def test_no_import_goes_in_a_circle() -> None:
    """Inside functions neither: there a circle is only hidden."""
    names = {name(path): path for path in MODULES}
    below = {}
    for module, path in names.items():
        used = imports_of(path)
        below[module] = {
            other
            for other in names
            if other != module and any(u == other or u.startswith(f"{other}.") for u in used)
        }
        # Of a package its modules are what is meant.
        below[module] -= {n for n, p in names.items() if p.name == "__init__.py"}
    assert any(below.values())
    graphlib.TopologicalSorter(below).prepare()  # raises CycleError


@pytest.mark.long  # launch/test_source_archive.py: what it holds is enough to import train
def test_the_training_part_needs_nothing_of_the_launcher() -> None:
    """A training image has none of these; a job's archive holds neither launch nor rehearsal."""
    modules = [name(path) for path in MODULES if room(path) in TRAINING]
    code = f"""
import importlib, sys
for missing in ("boto3", "botocore", "pydantic", "psutil", "sagemaker", "pytest"):
    sys.modules[missing] = None
for module in {modules}:
    importlib.import_module(module)
assert not [m for m in sys.modules if m.startswith(("smlightning.launch", "smlightning.rehearsal"))]
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("module", ["errors", "options", "files", "project", "cluster.signals"])
def test_modules_of_the_command_line_import_no_torch(module: str) -> None:
    code = f"import sys, smlightning.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
