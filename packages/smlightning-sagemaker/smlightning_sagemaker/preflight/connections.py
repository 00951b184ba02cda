"""Services that the processes of a job connect to, beyond the job's own hosts.

SageMaker itself copies code, data and results; those connections are not of the job's processes.
Two checks read this list: that of an isolated container, and that of a VPC.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from smlightning import hub, stored_secrets
from smlightning.options import declared_options
from smlightning_sagemaker.job import images
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.project import Project

Variables = Mapping[str, str]  # of the container

# Hosts, with all below them, that are on the internet and in nobody's VPC.
PUBLIC = (
    "pypi.org",
    "pythonhosted.org",
    "pytorch.org",
    "github.com",
    "huggingface.co",
    "wandb.ai",
    "amazonaws.com",
    "amazonaws.com.cn",
    "app.aws",  # of AWS's own applications, as mlflow.sagemaker.us-east-1.app.aws
    "sagemaker.aws",
)
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
# The hub's client reads them (huggingface_hub, constants.py): the first two keep it from the
# network, the others are folders of what it has fetched.
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME")
TRUE = ("1", "ON", "YES", "TRUE")
# A name on the hub, not a file of data. With an owner it cannot be anything else.
REPOSITORY = re.compile(
    r"(?!.*\.(?:csv|tsv|jsonl?|parquet|arrow)$)[\w-][\w.-]{0,95}(?:/[\w.-]{1,96})?"
)
WANDB = "WANDB_API_KEY"
ADDRESS = re.compile(r"https?://[^\s\"']+")


@dataclass(frozen=True)
class Connection:
    """Something that a job's processes connect to.

    Attributes:
        key: of job.toml, or a file, that asks for it.
        to: its name, in a sentence.
        cure: how the job does without it.
        services: of AWS in the job's region, as the names of their VPC endpoints end.
        host: of anything else.
        variable: of [environment], that names another host in its place; empty: none does.
        needed: whether a job is known to end without it.
    """

    key: str
    to: str
    cure: str
    services: tuple[str, ...] = ()
    host: str = ""
    variable: str = ""
    needed: bool = True

    @property
    def is_public(self) -> bool:
        """Whether its host is on the internet; another one may be in the job's VPC."""
        return any(f".{self.host}".endswith(f".{domain}") for domain in PUBLIC)


def connections(job: Job, request: Mapping[str, Any], project: Project) -> tuple[Connection, ...]:
    """The services that the processes of a job connect to.

    Args:
        job: of job.toml.
        request: CreateTrainingJob.
        project: whose src/ is sent.
    """
    given = request.get("Environment", {})  # a name may have any value
    variables = {str(name): str(value) for name, value in given.items()}
    return (
        *packages(job, variables, project),
        *hub_repositories(job, variables, project),
        *secrets(job, variables),
        *tracking(job, variables),
    )


def packages(job: Job, variables: Variables, project: Project) -> Iterator[Connection]:
    """The index that pip installs requirements.txt from."""
    if not requirements.asks_an_index(job, project):
        return
    key = requirements.key_of(project)
    cure = (
        "put wheels into src/, with --no-index and --find-links, or use an image that holds the "
        "packages"
    )
    if repository := variables.get(requirements.CODEARTIFACT, ""):
        region = (repository.split(":") + [""] * 4)[3]
        services = ("codeartifact.api", "codeartifact.repositories")
        yield of_aws(job, region, "CodeArtifact", *services, key=key, cure=cure)
        return
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
    texts = [
        *(variables.get(name, "") for name in names),
        *requirements.lines(project.requirements),
    ]
    found = [host_of(address) for text in texts for address in ADDRESS.findall(text)]
    indexes = [
        Connection(key, f"{host} (pip)", cure, host=host, variable="PIP_INDEX_URL")
        for host in found or ["pypi.org"]
    ]
    # pip passes over an index that does not answer, so that one private index may hold all.
    yield next((index for index in indexes if not index.is_public), indexes[0])


def hub_repositories(job: Job, variables: Variables, project: Project) -> Iterator[Connection]:
    """Data sets and models of the Hugging Face hub, unless its client is to stay offline.

    A name with an owner is certainly a repository; another one may be built into the project.
    """
    if any(variables.get(name, "").upper() in TRUE for name in OFFLINE):
        return
    host = host_of(variables.get("HF_ENDPOINT", "")) or "huggingface.co"
    has_cache = images.profile(job) is None or any(variables.get(name) for name in CACHES)
    declared = declared_options(project.options().cls)
    for option in ("dataset", "model_name"):
        default = declared[option].default if option in declared else ""
        name = job.hyperparameters.get(option, default)
        if not isinstance(name, str) or not REPOSITORY.fullmatch(name):
            continue
        is_certain = "/" in name
        is_built_in = name == "training" or (name == default and not is_certain)
        if not is_built_in and not (project.src / name).exists():
            yield Connection(
                f"hyperparameters.{option}",
                f'{host} ("{name}")',
                "put a copy of it under [channels]",
                host=host,
                variable="HF_ENDPOINT",
                needed=is_certain and not has_cache,
            )


def secrets(job: Job, variables: Variables) -> Iterator[Connection]:
    """Stores of the secrets that each host's first process reads."""
    for variable, text in hub.secrets(dict(variables)).items():
        is_token = variable == hub.TOKEN and job.hub_token_secret
        key = "hub_token_secret" if is_token else f"secrets.{variable}"
        reference = stored_secrets.parse(text)
        store, service = "Secrets Manager", "secretsmanager"
        if reference.is_parameter:
            store, service = "Parameter Store", "ssm"
        yield of_aws(job, reference.region, store, service, key=key, cure=f"remove {key}")


def tracking(job: Job, variables: Variables) -> Iterator[Connection]:
    """Servers that get metrics: MLflow's, and Weights & Biases."""
    address = variables.get("MLFLOW_TRACKING_URI", "")
    key = "environment.MLFLOW_TRACKING_URI"
    region = (address.split(":") + [""] * 4)[3]
    if ":mlflow-tracking-server/" in address:
        yield of_aws(job, region, "MLflow", "experiments", key=key, cure=f"remove {key}")
    elif address:  # AWS's pages name no endpoint in a VPC for an app
        host = host_of(address) or f"mlflow.sagemaker.{region or job.region}.app.aws"
        yield Connection(key, host, f"remove {key}", host=host)
    is_secret = WANDB in hub.secrets(dict(variables))
    if (is_secret or WANDB in variables) and variables.get("WANDB_MODE", "online") == "online":
        host = host_of(variables.get("WANDB_BASE_URL", "")) or "api.wandb.ai"
        yield Connection(
            f"{'secrets' if is_secret else 'environment'}.{WANDB}",
            host,
            'set WANDB_MODE = "offline" in [environment]',
            host=host,
            variable="WANDB_BASE_URL",
            needed=False,
        )


def of_aws(job: Job, region: str, to: str, *services: str, key: str, cure: str) -> Connection:
    """A connection to services of AWS, which have endpoints in a VPC of their own region."""
    if region in ("", job.region):
        return Connection(key, to, cure, services=services)
    return Connection(key, f"{to} in {region}", cure, host=f"{services[0]}.{region}.amazonaws.com")


def host_of(address: str) -> str:
    """The host of an address; empty where it has none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # such as "http://["
        return ""
