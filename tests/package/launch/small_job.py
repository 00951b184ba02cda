"""A job that passes preflight, and the project's own job.toml with changes."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session

from smlightning import project
from smlightning.launch.job import Job

# AWS's models and endpoints are parsed once: the SDK does so for each request.
botocore.loaders.create_loader = botocore.session.create_loader = functools.cache(
    botocore.loaders.create_loader
)
PROJECT = project.find()
ROLE = "arn:aws:iam::123456789012:role/training"
GOOD = Job(
    name="language-id",
    region="us-east-1",
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    role=ROLE,
    hyperparameters={"epochs": 6, "lr": 2e-3, "dataset": "cldr", "compile": False},
    environment={"NCCL_DEBUG": "WARN"},
    tags={"project": "x"},
)
ANSWERS = {
    "aws_region": "us-east-1",
    "instance_type": "ml.g5.12xlarge",
    "instance_count": 2,
    "distribution": "auto",
}


def edited(path: Path, changes: dict[str, Any]) -> Path:
    """The project's own job.toml with some values changed or added: `key`, or `table.key`."""
    text = PROJECT.job_file.read_text(encoding="utf-8")
    for (
        name,
        answer,
    ) in ANSWERS.items():  # in the template itself, where job.toml has no answers yet
        text = re.sub(rf"{{{{ ?cookiecutter.{name} ?}}}}", str(answer), text)
    text = re.sub(r"\{\{ cookiecutter.spot .*?\}\}", "false", text)
    text = re.sub(r"\{\{ .*?\}\}", "language-id", text)
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        start = re.search(rf"(?m)^\[{table}\].*\n", text).end() if table else 0  # type: ignore[union-attr]
        end = start + len(re.split(r"(?m)^\[", text[start:])[0])
        bare = name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)
        line = f"{bare} = {toml(value)}"
        section, found = re.subn(
            rf"(?m)^{name} = [^#\n]*", lambda _, line=line: f"{line} ", text[start:end]
        )
        text = text[:start] + ("" if found else f"{line}\n") + section + text[end:]
    path.write_text(text, encoding="utf-8")
    return path


def toml(value: Any) -> str:
    """A value in TOML; a table in one line."""
    if isinstance(value, dict):
        entries = (
            f"{json.dumps(name, ensure_ascii=False)} = {toml(v)}" for name, v in value.items()
        )
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)
