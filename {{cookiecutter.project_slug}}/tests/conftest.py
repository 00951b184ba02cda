"""What the tests share: a clean place to run in."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import imports

imports.lightning()
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A run that is complete ignores signals, and what a later test starts would inherit that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder, on one host, outside SageMaker."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        other = name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MLFLOW_TRACKING_URI", "HUB_TOKEN_SECRET")
        if other or name.startswith(("SM_", "OMPI_", "SMDATAPARALLEL_")):
            monkeypatch.delenv(name)
