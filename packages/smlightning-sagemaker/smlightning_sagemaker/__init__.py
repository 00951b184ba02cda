"""Tools for SageMaker jobs of a Lightning project: preflight, rehearsal, sending and following."""

from smlightning import __version__

__all__ = ["__version__"]
