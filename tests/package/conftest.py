"""Fixtures of the package's tests: an empty folder to run in, and a project of this checkout."""

import atexit
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import pytest

from smlightning.launch import aws as launch_aws
from smlightning.testing.plugin import clean_place, same_signals

if TYPE_CHECKING:
    import small_training

__all__ = ["clean_place", "same_signals"]

TEMPLATE = Path(__file__).parents[2]
PROJECT = next(TEMPLATE.glob("{{*}}"))  # its Python files are the same bytes in every project
# Processes that tests start import the package and the project's files from this checkout.
PATHS = [PROJECT / "vendor" / "smlightning", PROJECT / "src", PROJECT / "tests"]
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, PATHS))
# The answers in job.toml; other files of a project are used as they are.
ANSWERS = {
    "project_slug": "language-identification",
    "aws_region": "us-east-1",
    "instance_type": "ml.g5.12xlarge",
    "instance_count": "2",
    "distribution": "auto",
    "spot": False,
}


def project_folder() -> Path:
    """A project of the checkout's own files and default answers, while this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="project-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    job = jinja2.Template((PROJECT / "job.toml").read_text(encoding="utf-8"))
    (folder / "job.toml").write_text(job.render(cookiecutter=ANSWERS) + "\n", encoding="utf-8")
    for name in ("src", "tests", "vendor", "pyproject.toml", "launch.ipynb"):
        (folder / name).symlink_to(PROJECT / name)
    return folder


os.environ["SMLIGHTNING_PROJECT"] = str(project_folder())
# Modules that tests share (small_job.py, …) are next to them.
HERE = Path(__file__).parent
sys.path += [str(folder) for folder in (HERE, *HERE.iterdir()) if folder.is_dir()]
# Fixtures of the example's own tests.
EXAMPLE = runpy.run_path(str(PROJECT / "tests" / "example" / "conftest.py"))
rows, words, tiny_bert = (EXAMPLE[name] for name in ("rows", "words", "tiny_bert"))


# Tests of the contract that are similar to others.
LONG = {"test_every_sample_reaches_one_rank[3]"} | {
    f"test_every_option_changes_something[{name}]"
    for name in ("data_dir", "label_column", "text_column", "seed", "warmup_ratio", "weight_decay")
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_contract") and item.name in LONG:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def signed_out() -> None:
    """Each test signs in to AWS itself, as a command does."""
    launch_aws.use_profile("")


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> "small_training.Fit":
    """Trains the small model of small_training.py."""
    import small_training

    return small_training.fit(monkeypatch)
