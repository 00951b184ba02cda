"""Loads parts of torchmetrics when they are first used, so that a run starts in half of the time.

Lightning imports torchmetrics for two base classes. torchmetrics 1.9 then imports transformers, and
with it torch.distributed.tensor, and scipy and matplotlib, wherever they are installed, and has no
switch for it. Here each module of `LAZY` is an ordinary one whose code runs when somebody asks for
a name that it lacks: `torchmetrics.Accuracy` loads torchmetrics without transformers,
`torchmetrics.text.BERTScore` loads transformers, and `plot` of a metric matplotlib. Nothing is
hidden from anybody else. `smlightning.lazy_dynamo` does the same with a part of torch.

Another version of torchmetrics is imported as it is, since its parts may need each other in another
order.
"""

import importlib
import logging
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from types import ModuleType
from typing import Any

from smlightning import lazy_dynamo

PROVEN = ("1.8.", "1.9.")  # beginnings of torchmetrics' versions
PLOT = "torchmetrics.utilities.plot"
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
    PLOT,
)
# Names of torchmetrics that Lightning asks for, and the modules that have them.
EARLY = {
    "Metric": "torchmetrics.metric",
    "MetricCollection": "torchmetrics.collections",
    "__version__": "torchmetrics.__about__",
}
# Names of PLOT that each metric's module imports: functions, and types.
PLOTS = ("plot_single_or_multi_val", "plot_confusion_matrix", "plot_curve")
PLOT_TYPES = {
    "_AX_TYPE": lazy_dynamo.stand_in("matplotlib.axes", "Axes"),
    "_PLOT_OUT_TYPE": tuple[object, object],  # only for annotations, as without matplotlib
    "_CMAP_TYPE": object,
}


class LazyLoader(lazy_dynamo.DelegatingLoader):
    """Runs a module's code when a name is asked for that the module lacks.

    The standard library's class of this name runs it for ``__path__``, which each import of a
    submodule reads.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.lock = threading.RLock()
        self.begun = False

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = lambda name: self._find(module, name)
        if module.__name__ == "torchmetrics":
            vars(module)["_logger"] = logging.getLogger("torchmetrics")
            # torchmetrics.utilities and torchmetrics.metric import each other: in this order.
            importlib.import_module("torchmetrics.utilities")

    def _find(self, module: ModuleType, name: str) -> Any:
        if name == "__path__":  # each `from` asks a module for it, and a package has it
            raise AttributeError(name)
        early = self._early(module, name)
        if early is not None:
            return early
        self._run(module)
        if name in vars(module):
            return vars(module)[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    def _early(self, module: ModuleType, name: str) -> Any:
        """The value of a name that needs no other part of torchmetrics, or None."""
        if module.__name__ == "torchmetrics" and name in EARLY:
            return getattr(importlib.import_module(EARLY[name]), name)
        if module.__name__ == PLOT and name in PLOTS:
            return self._forwarding(module, name)
        return PLOT_TYPES.get(name) if module.__name__ == PLOT else None

    def _forwarding(self, module: ModuleType, name: str) -> Any:
        """A function that runs the module's code, and then the function of this name in it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._run(module)
            return vars(module)[name](*args, **kwargs)

        call.__name__ = call.__qualname__ = name
        call.__module__ = PLOT
        return call

    def _run(self, module: ModuleType) -> None:
        with self.lock:  # another thread waits until all names are there
            if not self.begun:
                self.begun = True
                try:
                    self.loader.exec_module(module)
                except BaseException:
                    self.begun = False
                    raise


class LazyFinder:
    """Finds modules as Python does, and gives those that are lazy a loader of their own."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        loader: Any = None
        if name in lazy_dynamo.HANDLED:
            loader = lazy_dynamo.loader_of(name)
        elif name in LAZY and version("torchmetrics").startswith(PROVEN):
            loader = LazyLoader
        if loader is None or target is not None:  # importlib.reload runs the module's own code
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            spec.loader = loader(spec.loader)
        return spec


def install() -> None:
    """Let all imports from now on be lazy ones; a second call changes nothing."""
    if LazyFinder not in sys.meta_path:
        sys.meta_path.insert(0, LazyFinder)  # type: ignore[arg-type]
