"""Lightning imported in half the time: without what torchmetrics imports for few runs' metrics.

Lightning imports all of torchmetrics. That imports transformers (for BERTScore), scipy.signal (for
audio) and matplotlib (for ``metric.plot``) wherever they are installed: half of the time, and a
fifth of the memory, of a process's start.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from smlightning.training.allocator import allocator_settings

LATER = ("transformers", "scipy", "matplotlib")


def lightning() -> None:
    """Import pytorch_lightning; call it before anything else does.

    While it is imported, the packages of ``LATER`` seem not to be installed. Afterwards they are as
    ever: the first ``plot`` imports matplotlib, and a metric that was left out is imported from its
    own module, as in ``from torchmetrics.text.bert import BERTScore``.

    Everything that is alive then is frozen. The garbage collector looks through none of it, which
    saves a third of the time of a process's start and end together.

    Torch reads its memory allocator's settings once, so their defaults are set before.
    """
    if "pytorch_lightning" in sys.modules:
        return
    os.environ.update(allocator_settings(version("torch"), os.environ))
    with seemingly_missing(LATER), uncollected():
        import pytorch_lightning  # noqa: F401
    gc.freeze()
    # Every plot calls this function first.
    plot = sys.modules["torchmetrics.utilities.plot"]
    plot._error_on_missing_matplotlib = _load_plots  # type: ignore[attr-defined]


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection in the body: while modules are imported, next to nothing is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def seemingly_missing(packages: tuple[str, ...]) -> Iterator[None]:
    """In the body these packages cannot be imported, unless they have been, and are not looked for.

    ``RequirementCache`` is what torchmetrics asks whether a package is installed.
    """
    from lightning_utilities.core.imports import RequirementCache

    is_available = RequirementCache.__bool__
    hidden = [name for name in packages if name not in sys.modules]

    def seems_available(self: RequirementCache) -> bool:
        return not str(self.requirement).startswith(packages) and is_available(self)

    RequirementCache.__bool__ = seems_available  # type: ignore[method-assign]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # import raises ModuleNotFoundError
    try:
        yield
    finally:
        RequirementCache.__bool__ = is_available  # type: ignore[method-assign]
        for name in hidden:
            del sys.modules[name]


def _load_plots() -> None:
    """Load torchmetrics' plots again, now with matplotlib: that restores its own function, too."""
    plot = importlib.reload(sys.modules["torchmetrics.utilities.plot"])
    plot._error_on_missing_matplotlib()
