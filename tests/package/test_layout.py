"""Imports in the package go one way, and none is of the owner's modules."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import smlightning

PACKAGE = Path(smlightning.__file__).parent
PROJECT = PACKAGE.parents[2]
MODULES = sorted(path for path in PACKAGE.glob("**/*.py") if "stubs" not in path.parts)
OWNERS = {path.stem for path in (PROJECT / "src").glob("*.py")}
# Each room imports only itself and rooms in the lines above it.
LAYERS = (
    {"terminal"},
    {"errors", "stored_secrets"},
    {"options", "files", "project", "hub", "outline", "serving", "tensors"},
    {"predictions"},
    {"torch_files", "attention"},
    {"cluster", "adapters"},
    {"pretrained"},
    {"data"},
    {"training"},
    {"checkpoints", "reports"},
    {"run", "entry"},
    {"launch", "ray_serving"},  # Ray is only in its inference image
    {"ports"},
    {"rehearsal"},
    {"testing"},
    {"__main__"},
)


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
    """Imports in functions count, too."""
    names = {name(path): path for path in MODULES}
    below = {}
    for module, path in names.items():
        used = imports_of(path)
        below[module] = {
            other
            for other in names
            if other != module and any(u == other or u.startswith(f"{other}.") for u in used)
        }
        # Importing a package's module is not an import of the package.
        below[module] -= {n for n, p in names.items() if p.name == "__init__.py"}
    assert any(below.values())
    graphlib.TopologicalSorter(below).prepare()  # raises CycleError
