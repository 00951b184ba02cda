"""The environment of all tests, their order, and the number of processes that take them."""

import os
from pathlib import Path

import pytest

from smlightning.testing import environment

if os.environ.get("PIP_CONFIG_FILE") != os.devnull:  # else a process with tests started this one
    from smlightning.launch import requirements

    os.environ.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    os.environ |= requirements.route()  # which may be in the user's home
environment.enter()

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
