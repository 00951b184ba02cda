"""Variables and secrets that the container's processes can use."""

from collections.abc import Iterator
from typing import Any

from smlightning.stored_secrets import REFERENCE
from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

RESERVED = "the launcher or SageMaker's toolkit sets it on each host"


def reserved(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Variables that a launcher or the toolkit sets itself (launchers.RESERVED_VARIABLES)."""
    for name in filter(launchers.reserves, job.environment):
        yield error(f"environment.{name}", RESERVED, "remove it")
    for name in filter(launchers.reserves, job.secrets):
        yield error(f"secrets.{name}", RESERVED, "give it another name")


def references(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The first process of each host finds a secret by its name (smlightning/stored_secrets.py).

    The finding does not print a text that is no name: it may be the secret.
    """
    for variable, name in job.secrets.items():
        if not REFERENCE.fullmatch(name):
            problem = "the value is not the name of a secret"
            hint = 'a name or an ARN, with ":KEY" for a key of its JSON, or "ssm:NAME"'
            yield error(f"secrets.{variable}", problem, hint)


def secrets(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Training fills the variables of [secrets], after pip has run (smlightning/hub.py)."""
    for name in job.secrets:
        key = f"secrets.{name}"
        if name in job.environment:
            problem = "[environment] sets the same variable, whose value training would use"
            yield error(key, problem, "remove it there")
        elif requirements.BEFORE_TRAINING.fullmatch(name):
            problem = "pip runs before training reads its secrets, so pip cannot use it"
            yield error(key, problem, f"remove it, and {requirements.WITHOUT_LOGIN}")
        elif requirements.PROXY.fullmatch(name) and requirements.asks_an_index(job, project):
            problem = "training gets it, but pip runs earlier and does not"
            yield warning(key, problem, f"for packages, {requirements.WITHOUT_LOGIN}")
