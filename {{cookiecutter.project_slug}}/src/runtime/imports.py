"""Lightning without what torchmetrics would import for metrics that nothing here uses."""

import sys


def lightning() -> None:
    """Import pytorch_lightning; call it before anything else does.

    Lightning imports all of torchmetrics, which imports transformers (for BERTScore) and scipy.signal (for audio)
    wherever they are installed: almost half of the time, and a fifth of the memory, of a process's start. While this
    imports Lightning they seem not to be installed. Afterwards they are as ever; what torchmetrics left out is imported
    from its own module: ``from torchmetrics.text.bert import BERTScore``.
    """
    from lightning_utilities.core.imports import RequirementCache

    if "pytorch_lightning" in sys.modules:
        return
    available = RequirementCache.__bool__
    hidden = [name for name in ("transformers", "scipy") if name not in sys.modules]

    def seems_available(self: RequirementCache) -> bool:
        return not str(self.requirement).startswith(("transformers", "scipy")) and available(self)

    RequirementCache.__bool__ = seems_available  # type: ignore[method-assign]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: import raises ModuleNotFoundError
    try:
        import pytorch_lightning  # noqa: F401
    finally:
        RequirementCache.__bool__ = available  # type: ignore[method-assign]
        for name in hidden:
            del sys.modules[name]
