"""Imports in both packages go one way, and none is of the owner's modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import checkout
import smlightning
import smlightning_sagemaker

RUNTIME = Path(smlightning.__file__).parent
TOOLS = Path(smlightning_sagemaker.__file__).parent
MODULES = sorted(
    path
    for package in (RUNTIME, TOOLS)
    for path in package.glob("**/*.py")
    if "stubs" not in path.parts
)
OWNERS = {path.stem for path in (checkout.PROJECT / "src").glob("*.py")}
# Each room imports only itself and rooms in the lines above it. The runtime's come first.
LAYERS = (
    {"lazy_dynamo"},
    {"lazy_imports", "terminal"},
    {"errors", "stored_secrets"},
    {"one_lightning"},
    {"options", "files", "hub", "parts", "tensors", "copies"},
    {"predictions"},
    {"torch_files"},
    {"cluster"},
    {"pretrained"},
    {"data"},
    {"training"},
    {"checkpoints", "reports", "saving"},
    {"run", "entry"},
)
TOOL_LAYERS = (
    {"project", "findings", "installed"},
    {"job"},
    {"follow"},
    {"preflight", "rehearsal"},  # neither uses the other's parts
    {"commands", "notebook"},
    {"testing"},
    {"__main__"},
)


def room(path: Path, package: Path) -> str:
    """The subpackage of a file, or the module that it is."""
    return path.relative_to(package).with_suffix("").parts[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what a file imports, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_below(layers: tuple[set[str], ...], here: str) -> set[str]:
    """The rooms that a file of this room may import."""
    if here == "__init__":
        return {"__version__", "lazy_imports", "one_lightning"}
    (level,) = (number for number, rooms in enumerate(layers) if here in rooms)
    return {here, "__version__"}.union(*layers[:level])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_imports_go_down_only_and_none_is_of_the_owners_modules(path: Path) -> None:
    used = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
    of_tools = {name.split(".")[1] for name in used if name.startswith("smlightning_sagemaker.")}
    if path.is_relative_to(RUNTIME):
        assert not of_tools and "smlightning_sagemaker" not in used
        of_runtime = {name.split(".")[1] for name in used if name.startswith("smlightning.")}
        assert of_runtime <= rooms_below(LAYERS, room(path, RUNTIME))
    else:
        assert of_tools <= rooms_below(TOOL_LAYERS, room(path, TOOLS))
    assert {"train", "options", "data", "model", "predict", "dist"} <= OWNERS
    assert not {name.partition(".")[0] for name in used} & OWNERS
