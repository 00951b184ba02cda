"""Hides modules and packages that this machine has and a host of SageMaker lacks."""

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def hide() -> None:
    """Let every finder of this process pass over what ``hidden.json`` next to this file lists."""
    modules, packages = json.loads(Path(__file__).with_name("hidden.json").read_text())
    if modules:
        sys.meta_path[:] = [Hiding(finder, {*modules}, {*packages}) for finder in sys.meta_path]


class Hiding:
    """A finder of ``sys.meta_path`` without some top-level modules and packages."""

    def __init__(self, finder: Any, modules: set[str], packages: set[str]) -> None:
        self.finder, self.modules, self.packages = finder, modules, packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name in self.modules else self.finder.find_spec(name, path, target)

    def find_distributions(self, *context: Any) -> Iterator[importlib.metadata.Distribution]:
        find = getattr(self.finder, "find_distributions", lambda *_: ())
        for found in find(*context):
            if re.sub(r"[-_.]+", "-", found.name or "").lower() not in self.packages:
                yield found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)
