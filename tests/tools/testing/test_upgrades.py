"""The guards against upgrades that the tools bring along."""

from smlightning_sagemaker.testing.test_upgrades import *  # noqa: F403
