"""What is said where an owner's files have replaced the example's, and of a wrong command."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import smlightning
import train
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


def test_an_option_that_make_would_not_pass_on() -> None:
    """`make train epochs=1` would train with the defaults."""
    folder = Path(train.__file__).parents[1]
    run = subprocess.run(
        ["make", "-n", "train", "epochs=1"], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 2 and "ARGS=" in run.stderr


def test_an_older_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Path(smlightning.__file__).read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match="or newer expected"):
        exec(compile(code, "smlightning", "exec"), {})  # noqa: S102
