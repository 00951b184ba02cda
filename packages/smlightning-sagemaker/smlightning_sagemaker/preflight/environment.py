"""Variables and secrets that the container's processes can use."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning.stored_secrets import REFERENCE
from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import images, instances, launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

# The image's own values lead to Python, CUDA and EFA; those of a job replace them.
PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME")
# Values with which GPUs do not use EFA or NVLink (deeplearning/nccl/user-guide/docs/env.html;
# libfabric's fi_provider.7).
WITHOUT_EFA = {
    "NCCL_NET": r"(?i)socket",
    "NCCL_P2P_DISABLE": r"1",
    "NCCL_SHM_DISABLE": r"1",
    "FI_PROVIDER": r"(?i)(tcp|sockets|udp|shm).*",
}
RESERVED = "the launcher or SageMaker's toolkit sets it on each host"


def reserved(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Variables that a launcher or the toolkit sets itself (launchers.RESERVED_VARIABLES)."""
    for name in filter(launchers.reserves, job.environment):
        yield error(f"environment.{name}", RESERVED, "remove it")
    for name in filter(launchers.reserves, job.secrets):
        yield error(f"secrets.{name}", RESERVED, "give it another name")


def replaced(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Paths of AWS's images, without which the container finds no Python or no EFA."""
    for name in filter(job.environment.get, PATHS if images.profile(job) else ()):
        problem = "it replaces the image's own folders, with Python, CUDA and EFA"
        yield warning(f"environment.{name}", problem, "remove it")


def slow(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """GPUs with NVLink and hosts with EFA use them."""
    for name, values in WITHOUT_EFA.items() if instances.efa(job.instance_type) else ():
        if re.fullmatch(values, job.environment.get(name, "")):
            problem = f"with {job.environment[name]}, {job.instance_type} exchanges gradients many "
            yield warning(f"environment.{name}", f"{problem}times slower", "remove it")


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
