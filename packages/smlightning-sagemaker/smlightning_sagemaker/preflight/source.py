"""src/ as it goes to S3: complete, small, and without data, secrets or links."""

import ast
import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements, secrets
from smlightning_sagemaker.preflight.paths import DATA_FILE
from smlightning_sagemaker.project import Project

TRAINING = ("train.py", "requirements.txt")
MAX_MB = 50  # ample for code; every host downloads and unpacks it before training


def files(job: Job, project: Project) -> Iterator[Finding]:
    """Problems of the links in src/ and of the files that `source_archive.files` would upload."""
    folder = project.src
    for name in TRAINING:
        if not (folder / name).is_file():
            yield error(f"{folder.name}/{name}", "is missing", "the container looks for it there")
    for name in ("smlightning", "smlightning.py"):
        if (folder / name).exists():
            problem = "would hide the package smlightning in the container"
            yield error(f"{folder.name}/{name}", problem, "give it another name")
    for path in source_archive.hidden(folder):
        name = path.relative_to(folder.parent).as_posix()
        problem = "is hidden: submit leaves it out, and the SDK's estimator uploads it"
        yield warning(name, problem, f"move it out of {folder.name}/")
    size = 0
    for path in source_archive.listed(folder):
        name = path.relative_to(folder.parent).as_posix()
        if path.is_symlink():
            problem = "is a link, which leads nowhere in the container"
            yield error(name, problem, "put the file itself there")
        elif source_archive.KEY_FILE.fullmatch(path.name):
            yield error(name, "may hold keys, so it is never uploaded", "move it out of src/")
        else:
            size += path.stat().st_size
            yield from file(path, name)
    if size > MAX_MB * 2**20:
        problem = f"holds {size / 2**20:.0f} MB; expected at most {MAX_MB} MB of code"
        yield error(f"{folder.name}/", problem, "upload data to S3, and read it by [channels]")


def file(path: Path, name: str) -> Iterator[Finding]:
    """Problems of one file of src/: secrets, data and notebook outputs."""
    text = ""
    if path.stat().st_size <= MAX_MB * 2**20:  # a larger one is an error
        text = path.read_text(encoding=encoding(path), errors="replace")
    if line := secrets.line_of_secret(text, path.suffix):
        problem = f"line {line} looks like a secret, and would be uploaded"
        cure = "keep it in Secrets Manager, and set its name in [secrets]"
        of_pip = re.fullmatch(r"requirements\S*\.(txt|in)|pip\.conf", path.name)
        yield error(name, problem, requirements.WITHOUT_LOGIN if of_pip else cure)
    elif DATA_FILE.fullmatch(path.name) or text.startswith("SQLite format 3\0"):
        problem = "is data, and would go to every host as code"
        yield error(name, problem, "put it into S3 and under [channels]")
    elif path.suffix == ".ipynb" and '"output_type"' in text:
        problem = "has outputs, which may hold data or secrets"
        yield error(name, problem, "clear them, or move it out of src/")


def encoding(path: Path) -> str:
    """Encoding of a file's text: UTF-16 as PowerShell writes and pip reads it, else UTF-8."""
    with path.open("rb") as file:
        is_utf_16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return "utf-16" if is_utf_16 else "utf-8-sig"


# Advice of earlier years, which fails today: how an import or a call begins in the form that
# `ast.unparse` gives it, the problem, and the cure.
OUTDATED = (
    (
        r"(import|from) smdistributed\.dataparallel\.torch(\.| import )distributed\b",
        "imports smdistributed.dataparallel.torch.distributed, which SMDDP 1.4 deprecated",
        "remove it: src/dist.py registers smddp as a backend of torch.distributed",
    ),
    (
        r"([\w.]+\.)?init_process_group\((backend=)?'mpi'",
        'calls init_process_group("mpi"), and torch in AWS\'s images has no MPI backend: mpirun '
        "only starts processes",
        "remove it: the Trainer's strategy of src/dist.py chooses the backend",
    ),
    (
        r"(int|len)\(os\.(environ(\.get\(|\[)|getenv\()'SM_HOSTS",
        "reads SM_HOSTS as a number or text, but it is a JSON list",
        'write len(json.loads(os.environ["SM_HOSTS"]))',
    ),
)

JUDGED = (ast.Import, ast.ImportFrom, ast.Call)  # a comment or docstring may tell of old code


def code(job: Job, project: Project) -> Iterator[Finding]:
    """The Python files of src/: they can be parsed, and follow no advice that is out of date."""
    for path in source_archive.listed(project.src):
        if path.suffix != ".py" or path.is_symlink():
            continue
        name = path.relative_to(project.src.parent).as_posix()
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError, RecursionError) as failure:
            line = f" (line {failure.lineno})" if isinstance(failure, SyntaxError) else ""
            yield error(name, f"is not Python: {failure.args[0]}{line}", "correct it")
            continue
        nodes = (node for node in ast.walk(tree) if isinstance(node, JUDGED))
        parts = [_text(node) for node in nodes]
        for pattern, problem, cure in OUTDATED:
            if any(re.match(pattern, part) for part in parts):
                yield error(name, problem, cure)


def _text(node: ast.AST) -> str:
    """The node as Python; empty for an expression of hundreds of terms."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def monitor(job: Job, project: Project) -> Iterator[Finding]:
    """The metric that marks the best weights is one that a run prints."""
    options = project.options()
    if options.monitor not in options.metrics:
        yield warning(
            "src/options.py",
            f"MONITOR is {options.monitor}, which METRICS does not list",
            "correct one of them: a run ends before training if validation does not log MONITOR",
        )
