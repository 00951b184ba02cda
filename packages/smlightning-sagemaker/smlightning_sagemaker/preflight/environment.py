"""Variables and secrets that the container's processes can use."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from smlightning.stored_secrets import REFERENCE
from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws, images, instances, launchers
from smlightning_sagemaker.job.job import PATHS, Job, hint_for_misplaced_key
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.preflight.paths import KEPT
from smlightning_sagemaker.project import Project

RESERVED = "the launcher or SageMaker's toolkit sets it on each host"


@dataclass(frozen=True)
class Rule:
    """Values of variables of the container that a job does not work with.

    Attributes:
        names: of the variables, whole.
        values: with which they do harm, whole; both are regular expressions.
        problem: with {value} and {kind}, the type of the hosts.
        hint: what to do.
        level: of the finding.
        concerns: whether the job has what the values harm.
    """

    names: str
    values: str
    problem: str
    hint: str = "remove it"
    level: Any = warning
    concerns: Callable[[Job], bool] = bool


def has_efa(job: Job) -> bool:
    return instances.efa(job.instance_type)


SLOW = "with {value}, {kind} exchanges gradients many times slower"
RULES = (
    # The image's own values lead to Python, CUDA and EFA; those of a job replace them.
    Rule(
        "PATH|LD_LIBRARY_PATH|PYTHONHOME",
        ".+",
        "it replaces the image's own folders, with Python, CUDA and EFA",
        concerns=lambda job: images.profile(job) is not None,
    ),
    # Values with which GPUs do not use EFA or NVLink (deeplearning/nccl/user-guide/docs/env.html;
    # libfabric's fi_provider.7).
    Rule("NCCL_NET", "(?i)socket", SLOW, concerns=has_efa),
    Rule("NCCL_NET_PLUGIN", "(?i)none", SLOW, concerns=has_efa),
    Rule("NCCL_(P2P|SHM)_DISABLE", "1", SLOW, concerns=has_efa),
    Rule("NCCL_P2P_LEVEL", "(?i)loc|0", SLOW, concerns=has_efa),
    Rule("FI_PROVIDER", "(?i)(tcp|sockets|udp|shm).*", SLOW, concerns=has_efa),
    # docs.pytorch.org/docs/2.13/cuda_environment_variables.html, and distributed.html
    Rule(
        "CUDA_LAUNCH_BLOCKING|PYTORCH_NO_CUDA_MEMORY_CACHING|TORCH_DISTRIBUTED_DEBUG",
        "(?i)1|detail",
        "it is for debugging, and slows each step",
        concerns=lambda job: instances.gpus(job.instance_type) != 0,
    ),
    Rule(
        "TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE",
        "1",
        "with {value}, torch compiles nothing",
        "remove it, or hyperparameters.compile",
        concerns=lambda job: job.hyperparameters.get("compile") is True,
    ),
    # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    Rule(
        "(NCCL|GLOO)_SOCKET_IFNAME",
        "=?lo",
        "lo is the loopback interface, through which hosts do not reach each other",
        level=error,
        concerns=lambda job: job.instance_count > 1,
    ),
    # github.com/NVIDIA/nvidia-container-toolkit, environment variables of the specification
    Rule(
        "NVIDIA_DRIVER_CAPABILITIES",
        "(?!.*(all|compute)).+",
        "with {value}, the container has no CUDA",
        'write "compute,utility", or remove it',
        error,
        lambda job: instances.gpus(job.instance_type) != 0,
    ),
    # pip.pypa.io/en/stable/cli/pip_install: it reads options as variables.
    Rule(
        "PIP_(TARGET|PREFIX|ROOT|DRY_RUN|PYTHON|REQUIRE_VIRTUALENV)",
        "(?i)(?!(0|false|no|off)?$).*",
        "pip would not install requirements.txt where training imports it",
        level=error,
    ),
    Rule(
        r"(?i)\w*(home|cache|tmp|temp|data)\w*",
        KEPT,
        "{value} goes to S3 with each model or checkpoint",
        "use a folder elsewhere, such as /tmp/cache",
    ),
)


def variables(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The rules above, for each variable of the finished request."""
    for name, value in request.get("Environment", {}).items():
        for rule in RULES:
            is_meant = re.fullmatch(rule.names, name) and re.fullmatch(rule.values, value)
            if is_meant and rule.concerns(job):
                problem = rule.problem.format(value=value[:80], kind=job.instance_type)
                yield rule.level(f"environment.{name}", problem, rule.hint)


def hidden_gpus(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No variable hides GPUs from processes that are started for all of them.

    The toolkit counts the GPUs of `nvidia-smi --list-gpus` (sagemaker-training 5.1.1,
    environment.py, num_gpus).
    """
    gpus = instances.gpus(job.instance_type)
    if launchers.launcher(job) == "none" and gpus:
        gpus = 1  # for the one process
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = job.environment.get(name, "all").strip()
        shown = [each for each in value.split(",") if each not in ("", "-1", "none", "void")]
        if value != "all" and gpus != 0 and len(shown) < (gpus or math.inf):
            problem = "it hides GPUs, and SageMaker starts a process for each GPU of the host"
            yield error(f"environment.{name}", problem, "use a smaller instance")


def reserved(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Variables that a launcher or the toolkit sets itself (launchers.RESERVED_VARIABLES)."""
    for name in filter(launchers.reserves, job.environment):
        yield error(f"environment.{name}", RESERVED, "remove it")
    for name in filter(launchers.reserves, job.secrets):
        yield error(f"secrets.{name}", RESERVED, "give it another name")


USUAL_TAGS = {"Environment"}  # which is a member of CreateTrainingJob as well


def misplaced(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Keys of job.toml and of AWS below a table that takes any name, and which the file lacks."""
    for table in ("tags", "environment", "secrets"):
        for name in getattr(job, table):
            is_key = name in PATHS and PATHS[name] not in job.model_fields_set
            members = {*aws.shape("CreateTrainingJobRequest").members} - USUAL_TAGS
            if is_key or {name, f"Training{name}"} & members:
                hint = hint_for_misplaced_key(name, project) or "set name above the first [table]"
                yield warning(f"{table}.{name}", f"it is an entry of [{table}], and no key", hint)


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
