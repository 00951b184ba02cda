"""An isolated container, and what its processes would need a network for."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning import hub
from smlightning_sagemaker.findings import Finding, error
from smlightning_sagemaker.job import images, requirements_file
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import network, requirements, sent
from smlightning_sagemaker.project import Project

KEY = "request.EnableNetworkIsolation"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
TRUE = re.compile(r"(?i)1|on|yes|true")  # huggingface_hub/constants.py, ENV_VARS_TRUE_VALUES


def packages(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """pip asks an index for the packages that the image lacks.

    https://docs.aws.amazon.com/sagemaker/latest/dg/mkt-algo-model-internet-free.html
    """
    if not request.get("EnableNetworkIsolation"):
        return
    for host in network.indexes(job, request, project)[:1]:
        problem = f"{requirements.key_of(project)} needs {host} (pip)"
        hint = f"{network.WITHOUT_INDEX}, or set EnableNetworkIsolation to false"
        yield error(KEY, f"{problem}; an isolated container has no network", hint)


def lightning(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """AWS's images hold no Lightning (their uv.lock), and an isolated container downloads none."""
    lines = requirements_file.lines(project.requirements)
    is_found = any(line.startswith(("--find-links", "-f")) for line in lines)
    missing = "pytorch-lightning" not in requirements.names(job, project) and not is_found
    if request.get("EnableNetworkIsolation") and images.profile(job) and missing:
        problem = f"{images.image_uri(job)} holds no pytorch-lightning"
        hint = f"{network.WITHOUT_INDEX}, or set EnableNetworkIsolation to false"
        yield error(KEY, f"{problem}; an isolated container has no network", hint)


def secrets(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Each host's first process reads the secrets from their store, by the network.

    https://docs.aws.amazon.com/sagemaker/latest/dg/mkt-algo-model-internet-free.html
    """
    for variable in job.secrets if request.get("EnableNetworkIsolation") else ():
        name = f"secrets.{variable}"
        problem = f"{name} is in a store of AWS; an isolated container has no network"
        yield error(KEY, problem, f"remove {name}, or set EnableNetworkIsolation to false")


def repositories(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A name with an owner is a repository of the hub, which an isolated container and an offline
    client do not reach, unless there is a cache (HF_HOME).

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    has_cache = any(name == "HF_HOME" or name.endswith("_CACHE") for name in job.environment)
    offline = [name for name in OFFLINE if TRUE.fullmatch(job.environment.get(name, ""))]
    reasons = {f"environment.{name}": (f"{name} keeps its client off", name) for name in offline}
    if request.get("EnableNetworkIsolation"):
        reasons = {KEY: ("an isolated container has no network", "EnableNetworkIsolation")}
    if not reasons or has_cache or images.profile(job) is None:
        return
    (key, (why, setting)), *_ = reasons.items()
    texts = sent.options(job, project)
    for option in ("dataset", "model_name"):
        name = texts.get(option, "")
        if "/" in name and hub.NAME.fullmatch(name) and not (project.src / name).exists():
            problem = f'hyperparameters.{option} is "{name}" of the hub; {why}'
            yield error(key, problem, f"put a copy of it under [channels], or remove {setting}")
