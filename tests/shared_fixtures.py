"""Fixtures of both packages' tests: an empty folder to run in, and a project of this checkout."""

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import checkout
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.testing.plugin import empty_folder, same_signals

if TYPE_CHECKING:
    import small_training

__all__ = [
    "empty_folder",
    "fit",
    "rows",
    "same_path",
    "same_signals",
    "signed_out",
    "tiny_bert",
    "words",
]

checkout.enter()
# Modules that tests share (small_job.py, …) are next to them.
for tests in (Path(__file__).parent / "runtime", Path(__file__).parent / "tools"):
    sys.path += [str(folder) for folder in (tests, *sorted(tests.iterdir())) if folder.is_dir()]
# Fixtures of the example's own tests.
EXAMPLE = runpy.run_path(str(checkout.PROJECT / "tests" / "example" / "conftest.py"))
rows, words, tiny_bert = (EXAMPLE[name] for name in ("rows", "words", "tiny_bert"))


@pytest.fixture(autouse=True)
def signed_out() -> None:
    """Each test signs in to AWS itself, as a command does."""
    aws.use_profile("")


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """No later test, and no rank that it forks, imports from a project of this test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> "small_training.Fit":
    """Trains the small model of small_training.py."""
    import small_training

    return small_training.fit(monkeypatch)
