"""Which of torch's names the package and the tasks use, and which of them a torch has.

`make images` writes what each image's torch has into tests/images/record.json; every `make test`
compares the code with it (tests/package/test_torch_names.py), so that a name that an old torch
lacks is found in seconds and without that torch.
"""

import ast
import importlib
import inspect
import json
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

TEMPLATE = Path(__file__).parents[2]
PROJECT = next(TEMPLATE.glob("{{*}}"))
CODE = (PROJECT / "vendor" / "smlightning" / "smlightning", PROJECT / "src", PROJECT / "tasks")

Names = dict[str, dict[str, str]]
"""Of each module the names in it, separated by blanks, and which of them are modules."""


def files() -> list[Path]:
    """Every Python file of the package and of both tasks' src/."""
    return sorted(path for folder in CODE for path in folder.glob("**/*.py"))


def used(source: str, library: str) -> Iterator[tuple[str, ...]]:
    """Each name of a library that a file uses, as its parts: ("torch", "nn", "Linear").

    Imports anywhere in the file count, and what is read from an imported module: `nn.Linear`.
    """
    tree = ast.parse(source)
    imported: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = tuple(alias.name.split("."))
                if parts[0] == library:
                    imported[alias.asname or parts[0]] = parts if alias.asname else parts[:1]
                    yield parts
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = tuple(str(node.module).split("."))
            if module[0] == library:
                for alias in node.names:
                    imported[alias.asname or alias.name] = (*module, alias.name)
                    yield (*module, alias.name)
    for node in ast.walk(tree):
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        if attributes and isinstance(node, ast.Name) and node.id in imported:
            yield (*imported[node.id], *attributes)


def in_code(library: str) -> dict[tuple[str, ...], list[Path]]:
    """Each name of a library that the code uses, and the files that use it."""
    names: dict[tuple[str, ...], list[Path]] = {}
    for path in files():
        for name in used(path.read_text(encoding="utf-8"), library):
            names.setdefault(name, []).append(path)
    return names


def missing(name: tuple[str, ...], torch: Names) -> str:
    """The part of a name that this torch lacks, dotted; empty if it has all.

    Raises:
        LookupError: the record holds nothing of one of the modules in the name.
    """
    for end in range(1, len(name)):
        module, attribute = ".".join(name[:end]), name[end]
        if module == "torch.ops":  # made when they are asked for
            return ""
        if module not in torch:
            raise LookupError(f"{module} is not in the record: make images ARGS=--names")
        if attribute not in torch[module]["names"].split():
            return f"{module}.{attribute}"
        if attribute not in torch[module]["modules"].split():
            return ""  # an attribute of an object
    return ""


def names_of(wanted: Iterable[tuple[str, ...]]) -> Names:
    """What the running torch has in each module that is a part of one of these names."""
    found: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    for name in wanted:
        for end in range(1, len(name)):
            module = ".".join(name[:end])
            try:
                content = importlib.import_module(module)
            except ImportError:  # a class, or a module that this torch lacks
                break
            if module not in found:
                modules[module] = submodules(content)
                found[module] = {*dir(content), *modules[module]}
            if hasattr(content, name[end]):
                found[module].add(name[end])  # dir() does not show the flags of torch.backends
    return {
        module: {"names": " ".join(sorted(found[module])), "modules": " ".join(sorted(parts))}
        for module, parts in modules.items()
    }


def submodules(content: types.ModuleType) -> set[str]:
    """Names in a module that are modules, also those in its folder that nothing has imported."""
    attributes = {name for name, value in vars(content).items() if inspect.ismodule(value)}
    folders = [Path(folder) for folder in getattr(content, "__path__", [])]
    modules = {path.stem for folder in folders for path in folder.glob("*.py")}
    packages = {path.parent.name for folder in folders for path in folder.glob("*/__init__.py")}
    return attributes | modules | packages


if __name__ == "__main__":  # in an image's environment: the names of standard input
    print(json.dumps(names_of(map(tuple, json.load(sys.stdin)))))
