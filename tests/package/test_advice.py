"""What a test run says where an owner's files have replaced the example's."""

from types import SimpleNamespace
from typing import Any

import pytest

from smlightning.testing import plugin


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("failed", "tests/example/test_data.py::test_a", "delete it"),
        ("error", "tests/example/test_model.py::test_b", "delete it"),
        ("error", "tests/test_contract.py::test_c", "rewrite it"),
        ("failed", "tests/test_contract.py::test_c", ""),  # which says itself what is wrong
        ("failed", "tests/test_own.py::test_d", ""),
    ],
)
def test_left_tests_of_the_example(kind: str, name: str, said: str) -> None:
    lines: list[str] = []
    stats = {kind: [SimpleNamespace(nodeid=name)]}
    reporter: Any = SimpleNamespace(stats=stats, write_line=lines.append)
    plugin.pytest_terminal_summary(reporter)
    assert len(lines) == bool(said) and all(said in line for line in lines)
