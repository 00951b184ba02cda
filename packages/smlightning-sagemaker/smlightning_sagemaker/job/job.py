"""`job.toml`, read and typed: the one description of a job that launching and rehearsing share.

A key of job.toml is one line here: its type and limits, the member of CreateTrainingJob that it
sets, and what it means. If the value is derived first (`derived=True`), request.py has the
function.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from smlightning.errors import UserError
from smlightning.options import declared_options
from smlightning_sagemaker.findings import Finding, error, hint_for_unknown_name
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.constants import Distribution
from smlightning_sagemaker.project import Project

MOST = 10**9  # no number of a job is larger
# Members of ResourceConfig that AWS takes in place of InstanceType and InstanceCount.
OTHER_HOSTS = ("InstanceGroups", "InstancePreferences")


def _is_value(value: Any) -> Any:
    if not isinstance(value, str | int | float):  # a boolean is an int, too
        raise ValueError("expected a text, a number, true or false")
    return value


def _is_channel(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("expected an address, or a table")
    return value


def _is_bucket(value: str) -> str:
    if "/" in value:
        raise ValueError("expected the bucket's name alone, as in my-bucket")
    return value


# Not unions, of which pydantic would report each member.
Value = Annotated[Any, AfterValidator(_is_value)]
Channel = Annotated[Any, AfterValidator(_is_channel)]


def key(member: str, text: str, *, default: Any = ..., derived: bool = False, **limits: Any) -> Any:
    """A key of job.toml.

    Args:
        member: of CreateTrainingJob that it sets; empty if it sets none directly.
        text: what the key means.
        default: without one, job.toml has to have the key.
        derived: request.py computes the member's value; otherwise it is sent as it stands. Left
            out are empty texts and lists, and 0 and false if they are the default.
        limits: pydantic's, as in `ge=1`.
    """
    extra: dict[str, Any] = {"member": member, "derived": derived}
    if callable(default):
        limits["default_factory"] = default
    else:
        limits["default"] = default
    return Field(description=text, json_schema_extra=extra, **limits)


class Table(BaseModel):
    """A table of job.toml. Types are strict: true is no number, and 1 is no text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Spot(Table):
    """Spare capacity, up to 90 % cheaper, which AWS may reclaim at any time."""

    enabled: bool = key(
        "EnableManagedSpotTraining", "use spare capacity, which AWS may reclaim", default=False
    )
    max_wait_s: int = key(
        "StoppingCondition.MaxWaitTimeInSeconds",
        "seconds of training and waiting together",
        default=28_800,
        derived=True,
        ge=1,
        le=MOST,
    )


class Network(Table):
    """Your VPC. Empty: SageMaker's own network."""

    subnets: list[str] = key("VpcConfig.Subnets", "IDs of subnets", default=list)
    security_groups: list[str] = key(
        "VpcConfig.SecurityGroupIds", "IDs of security groups", default=list
    )
    encrypt: bool = key(
        "EnableInterContainerTrafficEncryption",
        "encrypt what hosts send each other; slower",
        default=False,
    )


@dataclass(frozen=True)
class Hosts:
    """Hosts of one type."""

    instance_type: str
    count: int


class Job(Table):
    """Every answer that a job needs."""

    name: str = key(
        "TrainingJobName",
        "beginning of the job's name: at most 47 letters, digits and hyphens; the time is added",
        derived=True,
    )
    region: str = key("", "AWS's region of the job and its bucket")
    profile: str = key(
        "",
        "profile of ~/.aws/config that sends the job; empty: the environment's credentials",
        default="",
    )
    instance_type: str = key("ResourceConfig.InstanceType", "type of the hosts", min_length=1)
    instance_count: int = key("ResourceConfig.InstanceCount", "hosts", ge=1, le=MOST)
    distribution: Distribution = key("", "how processes are started", default="auto")
    image: str = key(
        "AlgorithmSpecification.TrainingImage",
        "auto, current, mpirun, smddp, or the address of an image",
        default="auto",
        derived=True,
    )
    role: str = key(
        "RoleArn",
        "name or ARN of the job's role; empty: the role of your credentials, as in Studio",
        default="",
        derived=True,
    )
    bucket: Annotated[str, AfterValidator(_is_bucket)] = key(
        "",
        "for code, models and checkpoints; empty: SageMaker's default bucket",
        default="",
    )
    volume_gb: int = key(
        "ResourceConfig.VolumeSizeInGB",
        "disk of each host; no effect on types with disks of their own",
        default=100,
        ge=1,
        le=MOST,
    )
    max_run_s: int = key(
        "StoppingCondition.MaxRuntimeInSeconds",
        "seconds of training after which AWS stops the job",
        default=3600,
        ge=1,
        le=28 * 86_400,  # CreateTrainingJob, StoppingCondition
    )
    checkpoint_s3: str = key(
        "CheckpointConfig.S3Uri",
        "where SageMaker copies checkpoints, and resumes from: auto, an address, or empty: nowhere",
        default="auto",
        derived=True,
    )
    forward_stop: bool = key(
        "AlgorithmSpecification.ContainerEntrypoint",
        "SageMaker's SIGTERM (spot, stop, max_run_s) reaches training; not tested on AWS",
        default=False,
        derived=True,
    )
    keep_alive_s: int = key(
        "ResourceConfig.KeepAlivePeriodInSeconds",
        "seconds that instances wait, billed, for the next job; not with spot",
        default=0,
        ge=0,
        le=MOST,
    )
    price_per_hour: float = key(
        "", "US dollars for one instance and hour; 0: AWS's price", default=0.0, ge=0, le=100_000
    )
    hyperparameters: dict[str, Value] = key(
        "HyperParameters",
        "options of src/train.py; the AWS console shows them",
        default=dict,
        derived=True,
    )
    channels: dict[str, Channel] = key(
        "InputDataConfig", "data that SageMaker copies to each host", default=dict, derived=True
    )
    spot: Spot = key("", "spare capacity", default=Spot)
    network: Network = key("", "your VPC", default=Network)
    environment: dict[str, str] = key(
        "Environment",
        "variables of the container; the AWS console shows them",
        default=dict,
        derived=True,
    )
    secrets: dict[str, str] = key("", "variable → secret, which the job's role reads", default=dict)
    tags: dict[str, str] = key("Tags", "cost-allocation tags", default=dict, derived=True)
    request: dict[str, Any] = key("", "other members of CreateTrainingJob", default=dict)

    @property
    def other_hosts(self) -> dict[str, Any]:
        """Members of [request.ResourceConfig] that replace instance_type and instance_count."""
        config = self.request.get("ResourceConfig", {})
        return {name: config[name] for name in OTHER_HOSTS if name in config}

    @property
    def clusters(self) -> list[list[Hosts]]:
        """The clusters of which AWS starts one, each with its types of hosts.

        InstanceGroups are one cluster of several types, InstancePreferences a cluster each
        (API_ResourceConfig).
        """
        named = {
            name: [
                Hosts(
                    str(entry.get("InstanceType")), entry.get("InstanceCount", self.instance_count)
                )
                for entry in entries
            ]
            for name, entries in self.other_hosts.items()
        }
        preferred = [[hosts] for hosts in named.get("InstancePreferences", [])]
        groups = [named["InstanceGroups"]] if named.get("InstanceGroups") else []
        return preferred or groups or [[Hosts(self.instance_type, self.instance_count)]]

    @property
    def variants(self) -> "list[Job]":
        """The job on each type of host that may run it, with the hosts of its whole cluster."""
        return [
            self.model_copy(
                update={
                    "instance_type": hosts.instance_type,
                    "instance_count": sum(each.count for each in cluster),
                }
            )
            for cluster in self.clusters
            for hosts in cluster
        ]

    def replace(self, **changes: Any) -> "Job":
        """A copy with other values for some keys, checked like those of a file.

        Raises:
            JobError: a value is not valid.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return from_table({**given, **changes})


@dataclass(frozen=True)
class Key:
    """A key as it is declared above."""

    path: str  # in job.toml, as in spot.enabled
    member: str
    derived: bool
    default: Any

    def of(self, job: Job) -> Any:
        """The value of this key."""
        value: Any = job
        for name in self.path.split("."):
            value = getattr(value, name)
        return value


def _keys(table: type[Table], prefix: str = "") -> Iterator[Key]:
    for name, field in table.model_fields.items():
        declared: Any = field.json_schema_extra
        default = field.get_default(call_default_factory=True)
        yield Key(prefix + name, declared["member"], declared["derived"], default)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            yield from _keys(field.annotation, f"{prefix}{name}.")


KEYS = tuple(_keys(Job))
# tags → tags, enabled → spot.enabled
PATHS = {entry.path.rpartition(".")[2]: entry.path for entry in KEYS}
# The key that sets a member of CreateTrainingJob.
KEY_OF_MEMBER = {entry.member: entry.path for entry in KEYS if entry.member}
TABLES = {
    name
    for name, field in Job.model_fields.items()
    if get_origin(field.annotation) is dict or name in ("spot", "network")
}
# Members that neither a key nor [request] may set, and the source of their values.
OTHER_SOURCES = {"AlgorithmSpecification.MetricDefinitions": "METRICS of src/options.py"}

# A channel that is a table: its key, and the member of Channel that it sets. Members themselves,
# which begin with a capital, are merged as those of [request] are.
S3_CHANNEL = {
    "s3_data": "DataSource.S3DataSource.S3Uri",
    "s3_data_type": "DataSource.S3DataSource.S3DataType",
    "distribution": "DataSource.S3DataSource.S3DataDistributionType",
    "attribute_names": "DataSource.S3DataSource.AttributeNames",
    "instance_groups": "DataSource.S3DataSource.InstanceGroupNames",
    "input_mode": "InputMode",
    "content_type": "ContentType",
    "compression": "CompressionType",
    "record_wrapping": "RecordWrapperType",
}
FILE_SYSTEM_CHANNEL = {
    "file_system_id": "DataSource.FileSystemDataSource.FileSystemId",
    "file_system_type": "DataSource.FileSystemDataSource.FileSystemType",
    "directory_path": "DataSource.FileSystemDataSource.DirectoryPath",
    "file_system_access_mode": "DataSource.FileSystemDataSource.FileSystemAccessMode",
    "input_mode": "InputMode",
    "content_type": "ContentType",
}


class JobError(UserError):
    """job.toml is wrong; `findings` has every problem of the file, each with key and hint."""

    def __init__(self, findings: list[Finding]) -> None:
        keys = ", ".join(finding.key for finding in findings)
        super().__init__(f"wrong in job.toml: {keys}", "correct them")
        self.findings = findings

    def __str__(self) -> str:
        """One line for each finding."""
        return "\n".join(finding.sentence for finding in self.findings)


def load(path: str | Path, project: Project) -> Job:
    """Read the job from a file.

    Args:
        path: job.toml, or the same tables as JSON in a file that ends in `.json`.
        project: its options help to find the table of a misplaced key.

    Raises:
        JobError: with every problem of the file.
    """
    return from_table(_read(Path(path)), project, Path(path).name)


def from_table(
    table: dict[str, Any], project: Project | None = None, file: str = "job.toml"
) -> Job:
    """The job of a job file's content; raises JobError with every problem."""
    try:
        job = Job.model_validate(table)
    except ValidationError as problems:
        raise JobError([_finding(each, project, file) for each in problems.errors()]) from None
    findings = list(_request_problems(job))
    if findings:
        raise JobError(findings)
    return job


def _read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; raises JobError if it is not one."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as failure:
        finding = error(
            str(path), f"cannot be read ({failure.strerror})", "pass its path with --job"
        )
    except (ValueError, RecursionError) as failure:  # not TOML, not UTF-8, nested too deeply
        finding = error(str(path), f"is not TOML in UTF-8: {failure}", "correct that line")
    raise JobError([finding])


def _finding(problem: ErrorDetails, project: Project | None, file: str) -> Finding:
    """The finding for a value that pydantic rejects: what it found, and what it expected."""
    names = [part for part in problem["loc"] if isinstance(part, str)]
    entries = [f"entry {part + 1}: " for part in problem["loc"] if isinstance(part, int)]
    path, is_unknown = ".".join(names), problem["type"] == "extra_forbidden"
    # Keys at the end of the file belong to the last table, which may take any name.
    misplaced = ""
    if project and (is_unknown or names[0] in ("environment", "tags")):
        misplaced = hint_for_misplaced_key(names[-1], project)
    if problem["type"] == "missing":
        return error(path, "is missing", "set it in job.toml")
    if is_unknown:
        tables: dict[str, type[Table]] = {"spot": Spot, "network": Network}
        table = tables[names[0]] if len(names) > 1 else Job
        hint = misplaced or hint_for_unknown_name(names[-1], table.model_fields)
        return error(path, f"{file} has no such key", hint)
    expected = problem["msg"].removeprefix("Value error, ")
    expected = expected.replace("Input should be", "expected", 1)
    value = problem["input"]
    found = json.dumps(value, default=str)[:80]
    if isinstance(value, dict | list) or names[0] in ("environment", "secrets"):
        found = type(value).__name__  # long, or a secret
    text = f"{''.join(entries)}found {found}, {expected}"
    return error(path, text, misplaced or "correct it")


def _request_problems(job: Job) -> Iterator[Finding]:
    """Members of [request] that a key of job.toml sets, and values of a wrong type."""
    keys = {**KEY_OF_MEMBER, **OTHER_SOURCES}
    if not job.forward_stop:
        del keys["AlgorithmSpecification.ContainerEntrypoint"]
    for path, _ in leaves(job.request):
        within = (keys[member] for member in keys if f"{path}.".startswith(f"{member}."))
        key = next(within, "")
        if key:
            shown = f"[{key}]" if key in TABLES else key
            yield error(f"request.{path}", "job.toml has its own key for it", f"set {shown}")
    for member, problem in aws.wrong_types(job.request):
        yield error(f"request.{member}", f"wrong type, {problem}", "correct it")


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of each entry of nested tables that is not a table, or is an empty one."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def hint_for_misplaced_key(name: str, project: Project) -> str:
    """The hint for a key in a wrong table; empty for an unknown key."""
    if name in TABLES:
        return f"write its entries below [{name}]"
    if name in PATHS:
        table = PATHS[name].rpartition(".")[0]
        return f"set it in [{table}]" if table else "set it above the first [table]"
    if name in declared_options(project.options().cls):
        return "set it in [hyperparameters]"
    if name in aws.shape("CreateTrainingJobRequest").members:
        return "set it in [request]"
    return ""
