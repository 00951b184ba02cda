"""Loads parts of torchmetrics when they are first used, so that a run starts in half of the time.

Lightning imports torchmetrics for two base classes. torchmetrics 1.9 then imports transformers, and
with it torch.distributed.tensor, and scipy, wherever they are installed, and has no switch for it.
Here each package of `LAZY` is an ordinary module whose ``__init__`` runs when somebody asks for a
name that it lacks: `torchmetrics.Accuracy` loads torchmetrics without transformers, and
`torchmetrics.text.BERTScore` loads transformers. Nothing is hidden from anybody else.

Another version of torchmetrics is imported as it is, since its parts may need each other in another
order.
"""

import importlib
import logging
import sys
import threading
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from types import ModuleType
from typing import Any

PROVEN = ("1.9.",)  # beginnings of torchmetrics' versions
LAZY = (
    "torchmetrics",
    "torchmetrics.audio",
    "torchmetrics.multimodal",
    "torchmetrics.segmentation",
    "torchmetrics.text",
    "torchmetrics.functional",
    "torchmetrics.functional.audio",
    "torchmetrics.functional.multimodal",
    "torchmetrics.functional.segmentation",
    "torchmetrics.functional.text",
)
# Names of torchmetrics that Lightning asks for, and the modules that have them.
EARLY = {
    "Metric": "torchmetrics.metric",
    "MetricCollection": "torchmetrics.collections",
    "__version__": "torchmetrics.__about__",
}


class LazyLoader(Loader):
    """Runs a package's ``__init__`` when a name is asked for that the package lacks.

    The standard library's class of this name runs it for ``__path__``, which each import of a
    submodule reads.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.lock = threading.RLock()
        self.begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = lambda name: self._find(module, name)
        if module.__name__ == "torchmetrics":
            vars(module)["_logger"] = logging.getLogger("torchmetrics")
            # torchmetrics.utilities and torchmetrics.metric import each other: in this order.
            importlib.import_module("torchmetrics.utilities")

    def _find(self, module: ModuleType, name: str) -> Any:
        if module.__name__ == "torchmetrics" and name in EARLY:
            return getattr(importlib.import_module(EARLY[name]), name)
        with self.lock:  # another thread waits until all names are there
            if not self.begun:
                self.begun = True
                try:
                    self.loader.exec_module(module)
                except BaseException:
                    self.begun = False
                    raise
        if name in vars(module):
            return vars(module)[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")


class LazyFinder:
    """Finds the packages of `LAZY`, as Python does, and gives them a `LazyLoader`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in LAZY or not version("torchmetrics").startswith(PROVEN):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Let all imports from now on be lazy ones; a second call changes nothing."""
    if LazyFinder not in sys.meta_path:
        sys.meta_path.insert(0, LazyFinder)  # type: ignore[arg-type]
