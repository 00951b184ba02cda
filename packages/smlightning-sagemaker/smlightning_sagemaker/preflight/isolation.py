"""An isolated container, and what its processes would need a network for."""

from collections.abc import Iterator
from typing import Any

from smlightning import hub
from smlightning_sagemaker.findings import Finding, error
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import network, requirements
from smlightning_sagemaker.preflight.channels import texts_of_options
from smlightning_sagemaker.project import Project

KEY = "request.EnableNetworkIsolation"


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


def secrets(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Each host's first process reads the secrets from their store, by the network.

    https://docs.aws.amazon.com/sagemaker/latest/dg/mkt-algo-model-internet-free.html
    """
    for variable in job.secrets if request.get("EnableNetworkIsolation") else ():
        name = f"secrets.{variable}"
        problem = f"{name} is in a store of AWS; an isolated container has no network"
        yield error(KEY, problem, f"remove {name}, or set EnableNetworkIsolation to false")


def repositories(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A name with an owner is a repository of the hub, unless its client reads a cache (HF_HOME).

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    has_cache = any(name.startswith(("HF_", "TRANSFORMERS_")) for name in job.environment)
    if not request.get("EnableNetworkIsolation") or has_cache or images.profile(job) is None:
        return
    texts = texts_of_options(job, project)
    for option in ("dataset", "model_name"):
        name = texts.get(option, "")
        if "/" in name and hub.NAME.fullmatch(name) and not (project.src / name).exists():
            problem = f'hyperparameters.{option} is "{name}" of the hub; an isolated container has '
            hint = "put a copy of it under [channels], or set EnableNetworkIsolation to false"
            yield error(KEY, f"{problem}no network", hint)
