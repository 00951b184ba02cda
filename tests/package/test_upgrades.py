"""The guards against upgrades that the package brings along: pytest --pyargs smlightning.testing"""

from smlightning.testing.test_upgrades import *  # noqa: F403
