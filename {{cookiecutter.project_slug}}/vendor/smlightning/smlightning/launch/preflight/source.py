"""src/ as it goes to S3: complete, small, and without data, secrets or links."""

from collections.abc import Iterator
from pathlib import Path

from smlightning.launch.findings import Finding, error, warning
from smlightning.launch.job import Job
from smlightning.launch.preflight.paths import DATA_FILE
from smlightning.launch.preflight.secrets import SECRET, SECRET_FILE
from smlightning.project import Project

NEEDED = ("train.py", "requirements.txt")
MAX_MB = 50  # ample for code; every host downloads and unpacks it before training


def files(job: Job, project: Project) -> Iterator[Finding]:
    """Each file of src/, and all of them together."""
    folder = project.src
    for name in NEEDED:
        if not (folder / name).is_file():
            yield error(f"{folder.name}/{name}", "is missing", "the container looks for it there")
    size = 0
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        name = path.relative_to(folder.parent).as_posix()
        if path.is_symlink():
            problem = "is a link, which leads nowhere in the container"
            yield error(name, problem, "put the file itself there")
        elif path.is_file():
            size += path.stat().st_size
            yield from file(path, name)
    if size > MAX_MB * 2**20:
        problem = f"{size / 2**20:.0f} MB as code"
        yield error(f"{folder.name}/", problem, f"at most {MAX_MB}; data goes to [channels]")


def file(path: Path, name: str) -> Iterator[Finding]:
    """What a file of src/ should not be."""
    text = ""
    if path.stat().st_size <= MAX_MB * 2**20:  # a larger one is refused for its size
        text = path.read_text(encoding="utf-8", errors="replace")
    if SECRET_FILE.fullmatch(path.name) or SECRET.search(text):
        yield error(name, "looks like a secret, and would be uploaded", "move it out of src/")
    elif DATA_FILE.fullmatch(path.name):
        problem = "is data, and would go to every host as code"
        yield error(name, problem, "put it into S3 and under [channels]")
    elif path.suffix == ".ipynb" and '"output_type"' in text:
        problem = "has outputs, which may hold data or secrets"
        yield error(name, problem, "clear them, or move it out of src/")


def monitor(job: Job, project: Project) -> Iterator[Finding]:
    """The metric that marks the best weights is one that a run prints."""
    options = project.options()
    if options.monitor not in options.metrics:
        yield warning(
            "src/options.py",
            f"MONITOR, {options.monitor}, is not among METRICS",
            "correct one of them: a run whose validation does not log it ends before it trains",
        )
