"""The project's own modules. Only tests load them; the rest of the package never does."""

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from types import ModuleType

MODULES = ("options", "data", "model", "train", "dist", "predict", "small")


@dataclass(frozen=True)
class Owner:
    """Modules of src/, and tests/small.py, which defines the contract's small run."""

    options: ModuleType
    data: ModuleType
    model: ModuleType
    train: ModuleType
    dist: ModuleType
    predict: ModuleType
    small: ModuleType


def is_on_the_path() -> bool:
    """Whether a project's src/ and tests/ are on ``sys.path``."""
    return all(importlib.util.find_spec(name) for name in MODULES)


@cache
def load() -> Owner:
    """The modules of the project whose src/ and tests/ are on ``sys.path``."""
    return Owner(**{name: importlib.import_module(name) for name in MODULES})
