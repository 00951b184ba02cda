"""`job.toml`, read and typed: the one description of a job that launching and rehearsing share.

A key of job.toml is one line here: its type and limits, the member of CreateTrainingJob that it
sets, and what it means. A key whose value is sent as it stands needs nothing more; where a value
is derived first (`derived=True`), request.py has the function.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smlightning.errors import UserError
from smlightning.launch import aws, parameters
from smlightning.launch.constants import Distribution
from smlightning.launch.findings import Finding, cure_for_unknown_name, error, error_lines
from smlightning.options import declared_options
from smlightning.project import Project

Value = str | int | float | bool
Channel = str | dict[str, Any]
InstanceTypes = str | list[str]
MOST = 10**9  # no number of a job is larger
CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]+")


def key(member: str, text: str, *, default: Any = ..., derived: bool = False, **limits: Any) -> Any:
    """A key of job.toml.

    Args:
        member: of CreateTrainingJob that it sets; empty where it sets none by itself.
        text: what the key means.
        default: without one, job.toml has to have the key.
        derived: request.py computes the member's value; otherwise it is sent as it stands. Left
            out are empty texts and lists, and 0 and false where they are the default.
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

    enabled: bool = key("EnableManagedSpotTraining", "use spare capacity", default=False)
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
        "EnableInterContainerTrafficEncryption", "encrypt what hosts send", default=False
    )


class Tune(Table):
    """What `python -m smlightning tune` searches."""

    max_jobs: int = key("", "jobs in all", default=20, ge=1, le=MOST)
    parallel: int = key("", "jobs at a time", default=2, ge=1, le=MOST)
    ranges: dict[str, Any] = key("", "option → values, or {min, max, scale}", default=dict)


class Create(Table):
    """Members of what `tune`, `deploy` and `register` create, by AWS's names."""

    HyperParameterTuningJob: dict[str, Any] = key(
        "", "members of CreateHyperParameterTuningJob", default=dict
    )
    Model: dict[str, Any] = key("", "members of CreateModel", default=dict)
    EndpointConfig: dict[str, Any] = key("", "members of CreateEndpointConfig", default=dict)
    Endpoint: dict[str, Any] = key("", "members of CreateEndpoint", default=dict)
    TransformJob: dict[str, Any] = key("", "members of CreateTransformJob", default=dict)
    ModelPackage: dict[str, Any] = key("", "members of CreateModelPackage", default=dict)


class Job(Table):
    """Every answer that a job needs."""

    name: str = key("TrainingJobName", "its beginning; the time is added", derived=True)
    region: str = key("", "AWS's region")
    profile: str = key("", "profile of AWS's configuration that sends the job", default="")
    # resources.py says what the request gets of these two.
    instance_type: InstanceTypes = key(
        "ResourceConfig.InstanceType",
        "type of the hosts, or a list: the first of which AWS has enough",
        default="",
        derived=True,
    )
    instance_count: int = key(
        "ResourceConfig.InstanceCount", "hosts", default=0, derived=True, ge=1, le=MOST
    )
    distribution: Distribution = key("", "how processes are started", default="auto")
    image: str = key(
        "AlgorithmSpecification.TrainingImage",
        "auto, smddp, mpirun, current, or an image's URI",
        default="auto",
        derived=True,
    )
    registry: str = key("", "a mirror of AWS's registry, without repository or tag", default="")
    role: str = key("RoleArn", "execution role", default="", derived=True)
    bucket: str = key("", "for code, models and checkpoints", default="")
    volume_gb: int = key(
        "ResourceConfig.VolumeSizeInGB", "disk of each host", default=100, ge=1, le=MOST
    )
    max_run_s: int = key(
        "StoppingCondition.MaxRuntimeInSeconds",
        "seconds of training after which AWS stops the job",
        default=14_400,
        ge=1,
        le=MOST,
    )
    max_pending_s: int = key(
        "StoppingCondition.MaxPendingTimeInSeconds",
        "seconds of waiting for capacity after which AWS stops the job; 0: AWS's own limit",
        default=0,
        ge=0,
        le=MOST,
    )
    checkpoint_s3: str = key(
        "CheckpointConfig.S3Uri", "auto, an address, or empty", default="auto", derived=True
    )
    forward_stop: bool = key(
        "AlgorithmSpecification.ContainerEntrypoint",
        "forward SageMaker's SIGTERM to training",
        default=False,
        derived=True,
    )
    keep_alive_s: int = key(
        "ResourceConfig.KeepAlivePeriodInSeconds",
        "seconds that instances wait for the next job",
        default=0,
        ge=0,
        le=MOST,
    )
    price_per_hour: float = key(
        "", "US dollars for one instance and hour", default=0.0, ge=0, le=100_000
    )
    hub_token_secret: str = key("", "secret that holds a token of the hub", default="")
    mlflow: str = key("", "ARN of an MLflow server or app", default="")
    hyperparameters: dict[str, Value] = key(
        "HyperParameters", "options of src/train.py", default=dict, derived=True
    )
    channels: dict[str, Channel] = key(
        "InputDataConfig", "data that SageMaker copies to hosts", default=dict, derived=True
    )
    spot: Spot = key("", "spare capacity", default=Spot)
    network: Network = key("", "your VPC", default=Network)
    environment: dict[str, str] = key(
        "Environment", "variables of the container", default=dict, derived=True
    )
    secrets: dict[str, str] = key(
        "", "variable of a process → secret that it is filled from", default=dict
    )
    tags: dict[str, str] = key("Tags", "cost-allocation tags", default=dict, derived=True)
    request: dict[str, Any] = key("", "other members of CreateTrainingJob", default=dict)
    tune: Tune = key("", "a search", default=Tune)
    create: Create = key("", "members of other requests, by kind", default=Create)

    def replace(self, **changes: Any) -> "Job":
        """A copy with other values for some keys, which are judged as a file's are.

        Raises:
            JobError: a value is not valid.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return _validated({**given, **changes})


@dataclass(frozen=True)
class Key:
    """A key as it is declared above."""

    path: str  # in job.toml, as in spot.enabled
    member: str
    derived: bool
    default: Any


def _keys(table: type[Table], prefix: str = "") -> Iterator[Key]:
    for name, field in table.model_fields.items():
        declared: Any = field.json_schema_extra
        default = field.get_default(call_default_factory=True)
        yield Key(prefix + name, declared["member"], declared["derived"], default)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            yield from _keys(field.annotation, f"{prefix}{name}.")


KEYS = tuple(_keys(Job))
PATHS = {
    entry.path.rpartition(".")[2]: entry.path for entry in KEYS
}  # tags → tags, enabled → spot.…
# The key that sets a member of CreateTrainingJob.
KEY_OF_MEMBER = {entry.member: entry.path for entry in KEYS if entry.member}
TABLES = {
    name
    for name, field in Job.model_fields.items()
    if get_origin(field.annotation) is dict or name in ("spot", "network", "tune", "create")
}
# Members that no key sets, and no [request] may: where their values come from.
OTHER_SOURCES = {"AlgorithmSpecification.MetricDefinitions": "METRICS of src/options.py"}

# Keys of earlier versions, and what to do about them.
RETIRED = {"telemetry": "remove it: boto3 sends the job, and reports its use to nobody"}

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

EXPECTED: dict[Any, str] = {
    str: 'a text, in "quotes"',
    InstanceTypes: 'a type, "ml.…", or a list of them',
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list[str]: 'a list of texts, ["…", "…"]',
    Value: "a text, a number, true or false",
    Channel: 'an S3 address, "s3://…", or a table, { s3_data = "s3://…" }',
}


class JobError(UserError):
    """`job.toml` is wrong.

    Attributes:
        findings: every problem of the file, with its key and its cure.
    """

    def __init__(self, findings: list[Finding]) -> None:
        keys = ", ".join(finding.key for finding in findings)
        super().__init__(f"wrong in job.toml: {keys}", "correct them")
        self.findings = findings

    def __str__(self) -> str:
        """One line for each finding."""
        return "\n".join(finding.sentence for finding in self.findings)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a stack trace (IPython looks for this name)."""
        return error_lines(self)


def load(path: str | Path, project: Project) -> Job:
    """The job that the file describes.

    Args:
        path: of job.toml.
        project: whose options a cure may name.

    Raises:
        JobError: with every problem of the file at once.
    """
    return from_table(_read(Path(path)), project)


def members_to_create(path: Path) -> Create:
    """[create] of a job.toml whose other tables may be wrong; empty if there is no such file.

    Raises:
        JobError: it is no TOML, or [create] is wrong.
    """
    table: dict[str, Any] = {"name": "", "region": ""}
    if path.is_file():
        table["create"] = _read(path).get("create", {})
    try:
        return Job.model_validate(table).create
    except ValidationError as problems:
        raise JobError(list(_findings(problems, table, None))) from None


def from_table(table: dict[str, Any], project: Project) -> Job:
    """The job that the content of job.toml describes; raises JobError as `load` does."""
    findings = list(_estimator_table(table.get("estimator"), project))
    current = {name: value for name, value in table.items() if name != "estimator"}
    try:
        job = _validated(current, project)
    except JobError as wrong:
        raise JobError([*findings, *wrong.findings]) from None
    findings += request_problems(job)
    if findings:
        raise JobError(findings)
    return job


def _missing_hosts(table: dict[str, Any]) -> Iterator[Finding]:
    """The keys that say which hosts, as far as [request] leaves them open."""
    request = table.get("request")
    config = request.get("ResourceConfig") if isinstance(request, dict) else None
    config = config if isinstance(config, dict) else {}
    needed = ["instance_type", "instance_count"]
    if "InstanceGroups" in config:
        needed = []
    elif "InstancePreferences" in config:
        needed = [] if "InstanceCount" in str(config["InstancePreferences"]) else needed[1:]
    for name in needed:
        if name not in table or (name == "instance_type" and table[name] in ("", [])):
            yield error(name, "is missing", "set it in job.toml")


def _validated(table: dict[str, Any], project: Project | None = None) -> Job:
    """The job of a table; without a project, as for a copy of a job, no key can be misplaced."""
    findings = list(_missing_hosts(table))
    try:
        job = Job.model_validate(table)
    except ValidationError as problems:
        raise JobError([*findings, *_findings(problems, table, project)]) from None
    if findings:
        raise JobError(findings)
    return job


def _read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; raises JobError where it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as failure:
        finding = error(str(path), f"cannot be read ({failure.strerror})", "name it with --job")
    except UnicodeDecodeError:
        finding = error(str(path), "is not UTF-8 text, which TOML requires", "save it as UTF-8")
    except RecursionError:
        problem = "is not valid TOML: its tables or lists are nested too deeply"
        finding = error(str(path), problem, "correct it")
    except ValueError as failure:  # TOMLDecodeError; a number of 5,000 digits is a plain one
        problem = f"is not valid TOML: {_plain(str(failure))}"
        finding = error(str(path), problem, "correct that line")
    raise JobError([finding])


def _plain(message: str) -> str:
    """tomllib's message in words that a beginner knows."""
    twice = r"Cannot (overwrite a value|declare \(.*\) twice)"
    message = re.sub(twice, "a key or a table of this name stands further up", message)
    hint = "no value of TOML: text stands in straight quotes, true and false are lower case"
    return message.replace("Invalid value", hint)


def _findings(
    problems: ValidationError, table: dict[str, Any], project: Project | None
) -> Iterator[Finding]:
    """A finding for each key that pydantic refuses."""
    refused: set[tuple[Any, ...]] = set()
    for problem in problems.errors(include_url=False):
        place = problem["loc"][: 2 if problem["loc"][0] in TABLES else 1]
        if place not in refused:  # a union, or a list, has several problems at one key
            refused.add(place)
            if problem["type"] == "extra_forbidden":
                yield _unknown(place, _at(table, place), project)
            else:
                yield _finding(place, problem["type"], problem.get("ctx", {}), table, project)


def _finding(
    place: tuple[Any, ...],
    kind: str,
    limits: dict[str, Any],
    table: dict[str, Any],
    project: Project | None,
) -> Finding:
    """What is wrong at one key, in the words of job.toml."""
    path = _path(place)
    if kind == "missing":
        return error(path, "is missing", "set it in job.toml")
    value = _at(table, place)
    shown = show(value)
    if place[0] in ("environment", "secrets"):  # perhaps a secret itself
        shown = f"a value of type {type(value).__name__}"
    expected, cure = _expected(place), "correct it"
    if "ge" in limits or "le" in limits:
        expected = _range(place)
    if place[0] == "hyperparameters" and isinstance(value, dict | list):
        cure = "what is to be searched stands in [tune.ranges]"
    elif place[0] in ("environment", "tags") and len(place) > 1 and project:
        cure = cure_for_misplaced_key(place[1], project) or cure
    return error(path, f"found {shown}, expected {expected}", cure)


def _path(place: tuple[Any, ...]) -> str:
    """A place as its key is written: network.subnets."""
    return ".".join(show(name)[1:-1] or '""' for name in place)


def _unknown(place: tuple[Any, ...], value: Any, project: Project | None) -> Finding:
    """A key that job.toml does not have."""
    name, table = place[-1], Job if len(place) == 1 else Job.model_fields[place[0]].annotation
    if place[0] == "tune" and (cure_of_member := _cure_of_tuning_member(name)):
        cure = cure_of_member
    elif place[0] == "tune" and isinstance(value, dict | list):
        cure = "set it in [tune.ranges]"
    else:
        known: Any = table
        misplaced = cure_for_misplaced_key(name, project) if project else ""
        cure = misplaced or cure_for_unknown_name(name, known.model_fields)
    return error(_path(place), f"job.toml has no such key, found {show(value)}", cure)


def _cure_of_tuning_member(name: str) -> str:
    """Where to write a member of CreateHyperParameterTuningJob that has a name like this, as in
    strategy or early_stopping; empty if there is none.
    """
    flat = name.replace("_", "").lower()
    request = aws.request_shape("HyperParameterTuningJob").members
    config = "HyperParameterTuningJobConfig"
    for table, members in ((f".{config}", request[config].members), ("", request)):
        for member in members:
            if len(flat) > 5 and flat in member.lower():
                return f"set {member} in [create.HyperParameterTuningJob{table}]"
    return ""


def _at(table: dict[str, Any], place: tuple[Any, ...]) -> Any:
    value: Any = table
    for name in place:
        value = value[name]
    return value


def _annotation(place: tuple[Any, ...]) -> Any:
    """The type of the key, or of the entry of a table, at a place."""
    annotation: Any = Job.model_fields[place[0]].annotation
    if len(place) == 1:
        return annotation
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    return annotation.model_fields[place[1]].annotation


def _expected(place: tuple[Any, ...]) -> str:
    annotation = _annotation(place)
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(get_args(annotation))}"
    return EXPECTED.get(annotation) or f"a table, [{place[-1]}]"


def _range(place: tuple[Any, ...]) -> str:
    table: Any = Job if len(place) == 1 else Job.model_fields[place[0]].annotation
    limits = table.model_fields[place[-1]].metadata
    low = next(limit.ge for limit in limits if hasattr(limit, "ge"))
    high = next(limit.le for limit in limits if hasattr(limit, "le"))
    return f"a number from {low:,} to {high:,}"


def _estimator_table(table: Any, project: Project) -> Iterator[Finding]:
    """What to write in place of [estimator], which earlier versions of job.toml had."""
    if table is None:
        return
    problem = "[estimator] was replaced by [request], which takes AWS's own names"
    if not isinstance(table, dict) or not table:
        yield error("estimator", problem, "remove it")
        return
    for name in table:
        misplaced = cure_for_misplaced_key(name, project)
        cure = misplaced or "look its member up in AWS's CreateTrainingJob"
        yield error(f"estimator.{name}", problem, cure)


def request_problems(job: Job) -> list[Finding]:
    """What [request] may not hold: a member that job.toml has a key for, or that is no table."""
    problems, request = [], job.request
    keys = {
        member: key
        for member, key in KEY_OF_MEMBER.items()
        if key != "forward_stop" or job.forward_stop  # else the image's owner may have one
    }
    for path, value in leaves(request):
        above = next((member for member in _parents(path) if member in keys), "")
        elsewhere = next((member for member in _parents(path) if member in OTHER_SOURCES), "")
        if above:
            cure = f"set {_shown_path(keys[above])}"
            problems.append(error(f"request.{path}", "job.toml has a key of its own for it", cure))
        elif elsewhere:
            cure = f"set {OTHER_SOURCES[elsewhere]}"
            problems.append(error(f"request.{path}", "it is set elsewhere", cure))
        elif any(member.startswith(f"{path}.") for member in keys) and value != {}:
            problem = f"found {show(value)}, expected a table of its members"
            problems.append(error(f"request.{path}", problem, f"write them below [request.{path}]"))
    if request and not problems:
        for wrong in aws.wrong_types(request, aws.shape("CreateTrainingJobRequest")):
            problems.append(error(f"request.{wrong.path}", wrong.problem, wrong.cure))
    return problems


def _shown_path(path: str) -> str:
    return f"[{path}]" if path in TABLES else path


def _parents(path: str) -> list[str]:
    """a.b.c → a.b.c, a.b, a."""
    names = path.split(".")
    return [".".join(names[:count]) for count in range(len(names), 0, -1)]


def channel_folders(words: Sequence[str], job: Job | None) -> dict[str, Path]:
    """``NAME=DIR`` of each ``--channel``, checked.

    Args:
        job: where it has channels, only these can have a folder. None: a script without a job.
    """
    folders = {}
    for word in words:
        name, _, folder = word.partition("=")
        if not (CHANNEL_NAME.fullmatch(name) and folder and Path(folder).is_dir()):
            raise UserError(f"--channel {name}={folder}: no such folder", "write NAME=DIR")
        if job and job.channels and name not in job.channels:
            problem = f"--channel {name} is not among [channels] of job.toml"
            raise UserError(problem, cure_for_unknown_name(name, job.channels))
        folders[name] = Path(folder)
    return folders


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of nested tables that is no table itself, and its path; an empty table too."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def cure_for_misplaced_key(name: str, project: Project) -> str:
    """The cure of a key that stands in another table than its own; empty for an unknown one."""
    member = parameters.MEMBERS.get(name, "")
    if name in RETIRED:
        return RETIRED[name]
    if name in TABLES:
        return f"write its entries below [{name}]"
    if name in PATHS:
        table = PATHS[name].rpartition(".")[0]
        return f"set it in [{table}]" if table else "set it above the first [table]"
    if name in declared_options(project.options().cls):
        return "set it in [hyperparameters]"
    if member in KEY_OF_MEMBER:
        return f"set {KEY_OF_MEMBER[member]}"
    if member:
        return f"write it below [request], as {member}"
    if name in parameters.CURES:
        return parameters.CURES[name]
    return "set it in [request]" if name in _members() else ""


def _members() -> set[str]:
    """The members of CreateTrainingJob, by AWS's names."""
    return set(aws.shape("CreateTrainingJobRequest").members)


def show(value: Any) -> str:
    """A value about as TOML writes it, cut to one short line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:79] + "…"
