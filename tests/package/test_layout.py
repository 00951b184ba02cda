"""Imports in the package go one way, and none is of the owner's modules."""

import ast
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


def may_import(here: str) -> set[str]:
    """The rooms that a file of this room may import."""
    if here == "__init__":
        return set()
    (level,) = (number for number, rooms in enumerate(LAYERS) if here in rooms)
    return {here, "__version__"}.union(*LAYERS[:level])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_imports_go_down_only_and_none_is_of_the_owners_modules(path: Path) -> None:
    used = imports_of(path)
    rooms = {name.split(".")[1] for name in used if name.startswith("smlightning.")}
    assert rooms <= may_import(room(path))
    assert {"train", "options", "data", "model", "predict", "dist"} <= OWNERS
    assert not {name.partition(".")[0] for name in used} & OWNERS
