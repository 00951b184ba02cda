"""Imports Lightning in two thirds of the time: without packages that torchmetrics needs for few
metrics.

Lightning imports all of torchmetrics. That imports transformers (for BERTScore), scipy.signal (for
audio) and matplotlib (for ``metric.plot``) if they are installed.
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

    Meanwhile the packages of ``LATER`` cannot be imported. Afterwards they can: the first ``plot``
    imports matplotlib, and a metric that is missing can be imported from its own module, as in
    ``from torchmetrics.text.bert import BERTScore``.

    Torch reads its memory allocator's settings once, so their defaults are set before.
    """
    if "pytorch_lightning" in sys.modules:
        return
    os.environ.update(allocator_settings(version("torch"), os.environ))
    with hidden(LATER):
        import pytorch_lightning  # noqa: F401
    # The garbage collector of a forked loader worker would copy the pages of all these objects.
    gc.freeze()
    # Every plot calls this function first.
    plot = sys.modules["torchmetrics.utilities.plot"]
    plot._error_on_missing_matplotlib = _load_plots  # type: ignore[attr-defined]


@contextmanager
def hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Prevent imports of these packages in the body, unless they are imported already.

    torchmetrics asks ``RequirementCache`` whether a package is installed.
    """
    from lightning_utilities.core.imports import RequirementCache

    is_available = RequirementCache.__bool__
    names = [name for name in packages if name not in sys.modules]

    def seems_available(self: RequirementCache) -> bool:
        return not str(self.requirement).startswith(packages) and is_available(self)

    RequirementCache.__bool__ = seems_available  # type: ignore[method-assign]
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]  # import raises ModuleNotFoundError
    try:
        yield
    finally:
        RequirementCache.__bool__ = is_available  # type: ignore[method-assign]
        for name in names:
            del sys.modules[name]


def _load_plots() -> None:
    """Load torchmetrics' plots again, now with matplotlib: that restores its own function, too."""
    plot = importlib.reload(sys.modules["torchmetrics.utilities.plot"])
    plot._error_on_missing_matplotlib()
