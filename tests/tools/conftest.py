"""Fixtures of the tools' tests, and which of their tests take long."""

import pytest

from shared_fixtures import *  # noqa: F403

# Tests of the contract that are similar to others.
LONG = {"test_every_sample_reaches_one_rank[3]"} | {
    f"test_every_option_changes_something[{name}]"
    for name in ("data_dir", "label_column", "text_column", "seed", "warmup_ratio", "weight_decay")
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_contract") and item.name in LONG:
            item.add_marker(pytest.mark.long)
