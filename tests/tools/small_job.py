"""A job that passes preflight, and the project's own job.toml with changes."""

import functools
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session

from smlightning_sagemaker import project
from smlightning_sagemaker.job.job import Job

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


def edited(path: Path, changes: dict[str, Any]) -> Path:
    """The project's own job.toml with some values changed or added: `key`, or `table.key`.

    With changes it has no comments.
    """
    text = PROJECT.job_file.read_text(encoding="utf-8")
    if changes:
        content = tomllib.loads(text)
        for key, value in changes.items():
            set_at(content, key.split("."), value)
        text = document(content)
    path.write_text(text, encoding="utf-8")
    return path


def set_at(table: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in nested tables; what is not a table on the way becomes one."""
    for name in path[:-1]:
        if not isinstance(table.get(name), dict):
            table[name] = {}
        table = table[name]
    table[path[-1]] = value


def document(content: dict[str, Any]) -> str:
    """A file in TOML; each key in one line."""
    return "".join(f"{key} = {toml(value)}\n" for key, value in content.items())


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
