"""A pytest plugin: ``pytest_plugins = ["smlightning.testing.plugin"]`` in a project's
tests/conftest.py.

It is no entry point of pytest: that would change the tests of every other project in the same
environment.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smlightning.testing import environment
from smlightning.training import imports

pytest.register_assert_rewrite("smlightning.testing.contract", "smlightning.testing.processes")
environment.enter()


def pytest_configure(config: pytest.Config) -> None:
    """Tests run in folders of their own, and what asks for the project's folder still gets it."""
    if (config.rootpath / "job.toml").is_file():
        os.environ.setdefault("SMLIGHTNING_PROJECT", str(config.rootpath))
    imports.lightning()  # before a test's module does, in twice the time


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder, outside SageMaker and any launcher: code of an earlier
    test, as Lightning's, may have set a launcher's variables.
    """
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - environment.of_tests(os.environ).keys():
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A run that is complete ignores signals, and processes of a later test would inherit that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what to do where an owner's files have replaced the example's, and its tests are left."""
    reports = terminalreporter.stats
    failed = {
        kind: [report.nodeid for report in reports.get(kind, [])] for kind in ("failed", "error")
    }
    if any("tests/example/" in name for names in failed.values() for name in names):
        terminalreporter.write_line(
            "tests/example/ is of the example's data.py and model.py: if you have replaced these, "
            "delete it (docs/data_and_model.md)"
        )
    if any("test_contract.py" in name for name in failed["error"]):  # its small run did not end
        terminalreporter.write_line(
            "tests/small.py says on which data and with which options the contract tries your "
            "files: if you have replaced data.py or model.py, rewrite it (docs/data_and_model.md)"
        )
