"""The machinery in `src/runtime` knows nothing of the owner's files beside it, nor of any task, and stays readable."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import train

SRC = Path(train.__file__).parent
RUNTIME = sorted((SRC / "runtime").glob("**/*.py"))
OWNERS = {path.stem for path in SRC.glob("*.py")}
# A column, a metric or a part of one network: what only the owner's files may name.
TASK = {"accuracy", "label", "labels", "confusion", "macro", "f1", "tokenizer", "logits", "bytecnn", "cldr", "language"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of the modules that a file imports, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            yield node.module or ""


def documentation(tree: ast.AST) -> set[int]:
    """Nodes of strings that stand alone: docstrings, which may give examples."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every part of every name and of every string that code uses, in lower case, with its line."""
    skipped = documentation(tree)
    for node in ast.walk(tree):
        found: list[str | None] = []
        match node:
            case ast.Name():
                found = [node.id]
            case ast.Attribute():
                found = [node.attr]
            case ast.arg() | ast.keyword():
                found = [node.arg]
            case ast.FunctionDef() | ast.ClassDef():
                found = [node.name]
            case ast.Constant(value=str()) if id(node) not in skipped:
                found = [node.value]
        for name in found:
            yield from ((getattr(node, "lineno", 0), part) for part in re.findall(r"[a-z0-9]+", (name or "").lower()))


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.name)
def test_the_machinery_imports_nothing_of_the_owners(path: Path) -> None:
    used = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
    assert {"train", "options", "data", "model", "predict", "dist"} <= OWNERS
    assert not {name for name in used if name.partition(".")[0] in {*OWNERS, "launch", "rehearsal"}}


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.name)
def test_the_machinery_knows_no_task(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [f"{path.name}:{line} {word}" for line, word in words(tree) if word in TASK]
    skipped = documentation(tree)
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in skipped}
    found += sorted(strings & {"text", "text_column", "label_column", "input_ids"})  # `text` alone is any string
    assert not found, "give it as a parameter"


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.name)
def test_each_file_of_the_machinery_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


def test_the_check_of_words_sees_them() -> None:
    code = 'def score(accuracy):\n    """label"""\n    return x.label["val/accuracy"], f"{y} labels"'
    assert {word for _, word in words(ast.parse(code))} & TASK == {"accuracy", "label", "labels"}


@pytest.mark.parametrize("room", ["launch", "rehearsal"])
def test_no_import_goes_in_a_circle(room: str) -> None:
    """Inside functions neither: there a circle is only hidden."""
    files = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in (SRC.parent / room).glob("*.py")}
    below = {}
    for name, tree in files.items():
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules = {node.module.partition(".")[2] for node in froms if (node.module or "").startswith(f"{room}.")}
        modules |= {each.name for node in froms if node.module == room for each in node.names}
        below[name] = modules & files.keys()
    assert any(below.values())
    graphlib.TopologicalSorter(below).prepare()  # raises CycleError
