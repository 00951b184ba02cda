"""The project's own modules. Only tests load them; the rest of the package never does."""

import importlib
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


@cache
def load() -> Owner:
    """The modules of the project whose src/ and tests/ are on ``sys.path``."""
    return Owner(**{name: importlib.import_module(name) for name in MODULES})
