"""Fixtures of the tools' tests, and which of their tests take long."""

from typing import Any

import jsonschema
import pytest
from jsonschema.validators import validator_for

from shared_fixtures import *  # noqa: F403

# Tests of the contract that are similar to others.
LONG = {"test_every_sample_reaches_one_rank[3]"} | {
    f"test_every_option_changes_something[{name}]"
    for name in ("data_dir", "label_column", "text_column", "seed", "warmup_ratio", "weight_decay")
}


@pytest.fixture(autouse=True)
def unchecked_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validates sagemaker/config.yaml, and not the SDK's own schema before each of its values."""

    def validate(found: Any, schema: Any) -> None:
        validator_for(schema)(schema).validate(found)

    monkeypatch.setattr(jsonschema, "validate", validate)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_contract") and item.name in LONG:
            item.add_marker(pytest.mark.long)
