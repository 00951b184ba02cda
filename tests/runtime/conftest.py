"""Fixtures of the runtime's tests."""

from shared_fixtures import *  # noqa: F403
