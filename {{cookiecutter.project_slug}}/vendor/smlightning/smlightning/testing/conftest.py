"""`pytest --pyargs smlightning.testing` runs in a clean place, as a project's own tests do."""

from smlightning.testing.plugin import clean_place, pytest_configure, same_signals

__all__ = ["clean_place", "pytest_configure", "same_signals"]
