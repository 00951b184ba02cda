"""Tests of this folder compare with runs that nothing interrupted."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import small_training


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> "small_training.Alone":
    """Runs each uninterrupted training once."""
    import small_training

    return small_training.alone(tmp_path_factory.mktemp("alone"))
