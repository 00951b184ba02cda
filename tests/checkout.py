"""A project of this checkout's own files, for tests of both packages: nothing is generated."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import jinja2

TEMPLATE = Path(__file__).parents[1]
PROJECT = next(TEMPLATE.glob("{{*}}"))  # its Python files are the same bytes in every project
# Processes that tests start import the package and the project's files from this checkout.
PACKAGES = [TEMPLATE / "packages" / name for name in ("smlightning", "smlightning-sagemaker")]
PATHS = [*PACKAGES, PROJECT / "src", PROJECT / "tests"]
# The answers in job.toml; other files of a project are used as they are.
ANSWERS = {
    "project_slug": "language-identification",
    "aws_region": "us-east-1",
    "instance_type": "ml.g5.xlarge",
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
    for name in ("src", "tests", "tools", "pyproject.toml", "launch.ipynb"):
        (folder / name).symlink_to(PROJECT / name)
    return folder


@functools.cache
def enter() -> None:
    """Let this process and those that it starts use the checkout; once is enough."""
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, PATHS))
    os.environ["SMLIGHTNING_PROJECT"] = str(project_folder())
