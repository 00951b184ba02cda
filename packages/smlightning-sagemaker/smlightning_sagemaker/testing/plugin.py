"""A pytest plugin: ``pytest_plugins = ["smlightning_sagemaker.testing.plugin"]`` in a project's
tests/conftest.py.

It is not a pytest entry point: that would change the tests of other projects in the environment.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlightning_sagemaker.testing import environment

for name in ("contract", "processes"):
    pytest.register_assert_rewrite(f"smlightning_sagemaker.testing.{name}")
environment.enter()


def pytest_configure(config: pytest.Config) -> None:
    """Store the project's folder, since each test runs in its own folder."""
    if (config.rootpath / "job.toml").is_file():
        os.environ.setdefault("SMLIGHTNING_PROJECT", str(config.rootpath))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test in an empty folder, outside SageMaker and any launcher.

    An earlier test may have set a launcher's variables, as Lightning does.
    """
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - environment.of_tests(os.environ).keys():
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Restore signal handlers: a complete run ignores signals, and later processes inherit that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
