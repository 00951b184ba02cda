"""Hyperparameters, as the container would pass them, against what src/options.py declares."""

import json
from collections.abc import Iterator
from typing import Any

from smlightning.errors import UserError
from smlightning.options import (
    OptionError,
    declared_options,
    encode,
    nearest_option,
    parse_command_line,
    read_command_line,
)
from smlightning_sagemaker.findings import Finding, error, from_error, hint_for_unknown_name
from smlightning_sagemaker.job.job import Job, hint_for_misplaced_key
from smlightning_sagemaker.project import Project


def options(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """train.py has each option and accepts its value, as src/options.py declares it."""
    cls = project.options().cls
    declared = declared_options(cls)
    for name, value in job.hyperparameters.items():
        key = f"hyperparameters.{name}"
        if name not in declared:
            nearest = nearest_option(name, declared)
            hint = f"did you mean {nearest}?" if nearest else ""
            hint = hint_for_misplaced_key(name, project) or hint
            hint = hint or hint_for_unknown_name(name, declared)
            yield error(key, "train.py has no such option", hint)
        elif problem := unfit(cls, name, value):
            default = json.dumps(declared[name].default)
            if default[0] in "[{":  # a text in job.toml, which train.py reads
                default = f"'{default}'"
            yield error(key, problem, f"as in {name} = {default}")


def conflicts(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The values go together, as ``__post_init__`` in src/options.py says."""
    if any(options(job, request, project)):
        return
    words = [f"--{name}={encode(value)}" for name, value in job.hyperparameters.items()]
    try:
        parse_command_line(project.options().cls, words)
    except UserError as failure:
        yield from_error("hyperparameters", failure)


def unfit(cls: type, name: str, value: Any) -> str:
    """The reason why an option rejects a value; empty if it accepts it."""
    try:
        read_command_line(cls, [f"--{name}={encode(value)}"])
    except OptionError as failure:
        return f"found {failure.value!r}, expected {failure.expected}"
    except UserError as failure:
        return failure.problem
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
    return ""
