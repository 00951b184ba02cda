"""Fixtures of the package's tests: an empty folder to run in, and a project of this checkout."""

import atexit
import os
import random
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


@pytest.fixture(scope="session")
def rows() -> list[tuple[str, str]]:
    """240 words in three alphabets, of 1 to 12 letters, and which alphabet it is: easy to learn."""
    import small  # the example's, and not before the paths above are set

    draw = random.Random(0)
    return [
        ("".join(draw.choices(alphabet, k=draw.randint(1, 12))), name)
        for name, alphabet in small.ALPHABETS.items()
        for _ in range(80)
    ]


@pytest.fixture(scope="session")
def tiny_bert(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a BERT of two layers, with random weights and a token for every letter."""
    from smlightning.testing.checkpoints import write_bert

    letters = "".join(text for text, _ in rows)
    return write_bert(tmp_path_factory.mktemp("tiny-bert"), letters)
