"""All that is sent with a job, as texts: the files of src/, and the values that AWS shows.

Checks that look for a word look here, so that a package, a YAML file or a variable counts like a
module.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smlightning.options import declared_options
from smlightning_sagemaker.job import source_archive
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.requirements_file import decoded
from smlightning_sagemaker.project import Project

MOST_BYTES = 50 * 2**20  # of a file that is read; source.py rejects a larger src/


def files(project: Project) -> dict[str, str]:
    """The name of each uploaded file from the project's folder → its text."""
    facts = ((path, path.stat()) for path in source_archive.files(project.src).values())
    return {
        path.relative_to(project.root).as_posix(): _text(path, stat.st_mtime_ns)
        for path, stat in facts
        if stat.st_size <= MOST_BYTES
    }


@functools.lru_cache(maxsize=1000)
def _text(path: Path, _changed: int) -> str:
    """The text of a file; a notebook's code without the escapes of JSON."""
    text = decoded(path.read_bytes())
    return text.replace('\\"', '"') if path.suffix == ".ipynb" else text


def without_docstrings(name: str, text: str) -> str:
    """The text of a file; in one of Python, lines of docstrings are empty."""
    lines = text.splitlines(keepends=True)
    for node in python_nodes(text) if name.endswith(".py") else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = "\n"
    return "".join(lines)


def python_nodes(text: str) -> list[ast.AST]:
    """All parts of a text of Python; none if it is not Python, which imports.py reports."""
    try:
        return [*ast.walk(ast.parse(text))]
    except (ValueError, SyntaxError, RecursionError):
        return []


def values(job: Job, request: dict[str, Any]) -> dict[str, str]:
    """Key of job.toml → value, of what DescribeTrainingJob and the AWS console show."""
    shown = {f"hyperparameters.{name}": str(value) for name, value in job.hyperparameters.items()}
    variables = request.get("Environment", {}).items()
    shown |= {f"environment.{name}": text for name, text in variables}
    return shown | {f"tags.{tag['Key']}": tag["Value"] for tag in request.get("Tags", [])}


def texts(job: Job, request: dict[str, Any], project: Project) -> Iterator[str]:
    """Every text: files, shown values, and the options' defaults."""
    yield from files(project).values()
    yield from values(job, request).values()
    yield from options(job, project).values()


def options(job: Job, project: Project) -> dict[str, str]:
    """Option → value, where it is a text: the job's, or the default."""
    declared = declared_options(project.options().cls)
    chosen = {name: option.default for name, option in declared.items()} | job.hyperparameters
    return {name: value for name, value in chosen.items() if isinstance(value, str)}
