"""Tests of this folder import Lightning, and compare with runs that nothing interrupted."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import small_training


def pytest_collectstart() -> None:
    """Not while this is imported: a process that shares tests out to others collects none."""
    import lightning_first  # noqa: F401


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> "small_training.Alone":
    """Runs each uninterrupted training once."""
    import small_training

    return small_training.alone(tmp_path_factory.mktemp("alone"))
