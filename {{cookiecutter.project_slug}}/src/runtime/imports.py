"""Lightning in half the time: without what torchmetrics would import for metrics and pictures of few runs."""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LATER = ("transformers", "scipy", "matplotlib")


@contextmanager
def uncollected() -> Iterator[None]:
    """While modules are imported the garbage collector rests: what they are made of stays."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def lightning() -> None:
    """Import pytorch_lightning; call it before anything else does.

    Lightning imports all of torchmetrics, which imports transformers (for BERTScore), scipy.signal (for audio) and
    matplotlib (for ``metric.plot``) wherever they are installed: half of the time, and a fifth of the memory, of a
    process's start. While this imports Lightning they seem not to be installed. Afterwards they are as ever: the first
    ``plot`` imports matplotlib, and a metric that was left out is imported from its own module, as in
    ``from torchmetrics.text.bert import BERTScore``.

    Everything alive is then frozen: the garbage collector looks through none of it, which is a third of the time of a
    process's start and end together.
    """
    from lightning_utilities.core.imports import RequirementCache

    if "pytorch_lightning" in sys.modules:
        return
    available = RequirementCache.__bool__
    hidden = [name for name in LATER if name not in sys.modules]

    def seems_available(self: RequirementCache) -> bool:
        return not str(self.requirement).startswith(LATER) and available(self)

    RequirementCache.__bool__ = seems_available  # type: ignore[method-assign]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: import raises ModuleNotFoundError
    try:
        with uncollected():
            import pytorch_lightning  # noqa: F401
        gc.freeze()
    finally:
        RequirementCache.__bool__ = available  # type: ignore[method-assign]
        for name in hidden:
            del sys.modules[name]
    plot = sys.modules["torchmetrics.utilities.plot"]
    # Every plot calls this first. Loading the module again, now with matplotlib, puts torchmetrics' own in its place.
    plot._error_on_missing_matplotlib = lambda: importlib.reload(plot)._error_on_missing_matplotlib()  # type: ignore[attr-defined]
