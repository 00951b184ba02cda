"""The environment of all tests, their order, and the number of their processes."""

import os
from pathlib import Path

import pytest

import isolation

isolation.enter()

LONGEST = ("test_stored_outputs_are_those_of_a_run", "test_a_job_stopped_by_slurm_is_requeued")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of generated projects first, and the longest two of them before all others.

    They take most of the time, and would otherwise run at the end, on one core.
    """
    items.sort(
        key=lambda item: (not item.name.startswith(LONGEST), "template" not in item.path.parts)
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes of ``-n auto``: three on two cores, since many tests wait; two for a file."""
    paths = [Path(argument.partition("::")[0]) for argument in config.args]
    return 3 if any(path.is_dir() for path in paths) else 2


@pytest.fixture(autouse=True)
def listed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has the listed variables only: code of an earlier test may have set others."""
    for name in os.environ.keys() - isolation.listed(os.environ).keys():
        monkeypatch.delenv(name)
