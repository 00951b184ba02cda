"""`pytest --pyargs smlightning_sagemaker.testing` runs in a clean place."""

from smlightning_sagemaker.testing.plugin import clean_place, pytest_configure, same_signals

__all__ = ["clean_place", "pytest_configure", "same_signals"]
