"""The environment of all tests, their order, and the number of processes that take them."""

import os
from pathlib import Path

import pytest

import isolation

isolation.enter()

LONGEST = "test_notebook_from_configuration_to_prediction"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start many processes come first, so that none of them is last and alone.

    Those of generated projects take nine tenths of the time in a tenth of the items.
    """
    items.sort(key=lambda item: (item.name != LONGEST, "template" not in item.path.parts))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes of ``-n auto``: on two cores some wait while others compute.

    For one file it takes longer to start a third than it saves.
    """
    paths = [Path(argument.partition("::")[0]) for argument in config.args]
    return 3 if any(path.is_dir() for path in paths) else 2


@pytest.fixture(autouse=True)
def listed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has the listed variables only: code of an earlier test may have set others."""
    for name in os.environ.keys() - isolation.listed(os.environ).keys():
        monkeypatch.delenv(name)
