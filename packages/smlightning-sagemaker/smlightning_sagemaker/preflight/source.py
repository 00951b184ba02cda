"""src/ as it goes to S3: complete and small, without links and keys."""

from collections.abc import Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project

NEEDED = ("train.py", "requirements.txt")
MAX_MB = 50  # ample for code; every host downloads and unpacks it before training


def complete(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The toolkit finds its files; no module hides the package, and no setup.py replaces train.py.

    Source: sagemaker-training 5.1.1, _entry_point_type.py and torch_distributed.py.
    """
    for name in NEEDED:
        if not (project.src / name).is_file():
            yield error(f"src/{name}", "is missing", "the container looks for it there")
    for name in ("smlightning", "smlightning.py"):
        if (project.src / name).exists():
            problem = "would hide the package smlightning in the container"
            yield error(f"src/{name}", problem, "give it another name")
    if (project.src / "setup.py").exists():
        problem = "SageMaker's toolkit would install src/ as a package, and start no training"
        yield error("src/setup.py", problem, "remove it, or move it out of src/")


def left_out(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Links and keys are not uploaded (source_archive.py), so the container would lack them."""
    for path in source_archive.listed(project.src):
        name = path.relative_to(project.root).as_posix()
        if path.is_symlink():
            problem = "is a link, which leads nowhere in the container"
            yield error(name, problem, "put the file itself there")
        elif source_archive.KEY_FILE.fullmatch(path.name):
            yield error(name, "may hold keys, so it is never uploaded", "move it out of src/")


def hidden(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Hidden files, which the SDK's estimator uploads (sagemaker.utils.create_tar_file)."""
    for path in source_archive.hidden(project.src):
        problem = "is hidden: submit leaves it out, and the SDK's estimator uploads it"
        yield warning(path.relative_to(project.root).as_posix(), problem, "move it out of src/")


def size(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """src/ is code: each host downloads and unpacks it before training, and waits for it."""
    total = sum(path.stat().st_size for path in source_archive.files(project.src).values())
    if total > MAX_MB * 2**20:
        problem = f"holds {total / 2**20:.0f} MB; expected at most {MAX_MB} MB of code"
        yield error("src/", problem, "upload data to S3, and read it by [channels]")
