"""`job.toml`, read and typed: the one description of a job that `launch` and `rehearsal` share."""

import json
import re
import tomllib
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from launch import ROOT
from launch.findings import near
from runtime.report import UserError

Value = str | int | float | bool

EXPECTED = {
    str: 'a text, in "quotes"',
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: 'a list of texts, ["…", "…"]',
    Value: "a text, a number, true or false",
    str | dict[str, Value]: 'an S3 address, "s3://…", or a table, { s3_data = "s3://…" }',
}
DISTRIBUTIONS = ("auto", "smddp", "torch_distributed", "pytorchddp", "none")


class JobError(UserError):
    """`job.toml` is wrong: a line for each thing found."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a stack trace (IPython looks for this name)."""
        return [f"error: {problem}" for problem in str(self).split("\n")]


def limited(default: Any = MISSING, *, low: float = 0, high: float = 1e9) -> Any:
    """A number from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class Spot:
    """Spare capacity, up to 90 % cheaper, which AWS may reclaim at any time."""

    enabled: bool = False
    max_wait_s: int = limited(172_800, low=1)


@dataclass(frozen=True)
class Network:
    """Your VPC. Empty: SageMaker's own network."""

    subnets: list[str] = field(default_factory=list)
    security_groups: list[str] = field(default_factory=list)
    encrypt: bool = False


@dataclass(frozen=True)
class Tune:
    """What `python -m launch tune` searches."""

    max_jobs: int = limited(20, low=1)
    parallel: int = limited(2, low=1)
    ranges: dict[str, Any] = field(default_factory=dict)  # option → values, or {min, max, scale}


@dataclass(frozen=True)
class Job:
    """Every answer a job needs; the comments of `job.toml` say what each is for."""

    name: str
    region: str
    instance_type: str
    instance_count: int = limited(low=1)
    distribution: str = field(default="auto", metadata={"choices": DISTRIBUTIONS})
    image: str = "auto"
    role: str = ""
    bucket: str = ""
    volume_gb: int = limited(100, low=1)
    max_run_s: int = limited(86_400, low=1)
    checkpoint_s3: str = "auto"
    forward_stop: bool = False
    keep_alive_s: int = limited(0)
    price_per_hour: float = limited(0.0, high=100_000)
    hub_token_secret: str = ""
    mlflow: str = ""
    telemetry: bool = False
    hyperparameters: dict[str, Value] = field(default_factory=dict)
    channels: dict[str, str | dict[str, Value]] = field(default_factory=dict)
    spot: Spot = field(default_factory=Spot)
    network: Network = field(default_factory=Network)
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    estimator: dict[str, Any] = field(default_factory=dict)
    tune: Tune = field(default_factory=Tune)


TABLES = {each.name for each in fields(Job) if is_dataclass(each.type) or get_origin(each.type) is dict}
KEYS = {each.name: "" for each in fields(Job)}  # and the table that each stands in
KEYS |= {key.name: each.name for each in fields(Job) if is_dataclass(each.type) for key in fields(each.type)}

# Parameters of the SDK's estimator that job.toml sets by a key of its own, and which.
OWN_KEYS = dict(
    pair.split("=")
    for pair in """role=role instance_type=instance_type instance_count=instance_count distribution=distribution
    image_uri=image framework_version=image py_version=image base_job_name=name sagemaker_session=region
    volume_size=volume_gb max_run=max_run_s keep_alive_period_in_seconds=keep_alive_s checkpoint_s3_uri=checkpoint_s3
    container_entry_point=forward_stop use_spot_instances=spot.enabled max_wait=spot.max_wait_s
    subnets=network.subnets security_group_ids=network.security_groups encrypt_inter_container_traffic=network.encrypt
    hyperparameters=[hyperparameters] environment=[environment] tags=[tags] entry_point=src/train.py source_dir=src/
    metric_definitions=src/options.py""".split()  # noqa: SIM905
)

# Where the parameters of v2's estimator stand in CreateTrainingJob.
MEMBERS = {
    **{"role": "RoleArn", "environment": "Environment", "tags": "Tags", "output_kms_key": "OutputDataConfig.KmsKeyId"},
    "image_uri": "AlgorithmSpecification.TrainingImage",
    "input_mode": "AlgorithmSpecification.TrainingInputMode",
    "metric_definitions": "AlgorithmSpecification.MetricDefinitions",
    "container_entry_point": "AlgorithmSpecification.ContainerEntrypoint",
    "enable_sagemaker_metrics": "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
    "instance_type": "ResourceConfig.InstanceType",
    "instance_count": "ResourceConfig.InstanceCount",
    "volume_size": "ResourceConfig.VolumeSizeInGB",
    "volume_kms_key": "ResourceConfig.VolumeKmsKeyId",
    "keep_alive_period_in_seconds": "ResourceConfig.KeepAlivePeriodInSeconds",
    "training_plan": "ResourceConfig.TrainingPlanArn",
    "max_run": "StoppingCondition.MaxRuntimeInSeconds",
    "max_wait": "StoppingCondition.MaxWaitTimeInSeconds",
    "max_retry_attempts": "RetryStrategy.MaximumRetryAttempts",
    "use_spot_instances": "EnableManagedSpotTraining",
    "output_path": "OutputDataConfig.S3OutputPath",
    "checkpoint_s3_uri": "CheckpointConfig.S3Uri",
    "subnets": "VpcConfig.Subnets",
    "security_group_ids": "VpcConfig.SecurityGroupIds",
    "encrypt_inter_container_traffic": "EnableInterContainerTrafficEncryption",
    "enable_network_isolation": "EnableNetworkIsolation",
    "enable_remote_debug": "RemoteDebugConfig.EnableRemoteDebug",
    "enable_session_tag_chaining": "SessionChainingConfig.EnableSessionTagChaining",
    "enable_infra_check": "InfraCheckConfig.EnableInfraCheck",
    "disable_profiler": "ProfilerConfig.DisableProfiler",
}


def home(key: str) -> str:
    """The cure of a key that stands in another table than its own; empty for a key that has none."""
    from options import OPTIONS
    from runtime import command_line

    if key in TABLES:
        return f"write its entries below [{key}]"
    if key in KEYS:
        return f"set it in [{KEYS[key]}]" if KEYS[key] else "set it above the first [table]"
    if key in command_line.declared(OPTIONS):
        return "set it in [hyperparameters]"
    if key in OWN_KEYS:
        return f"set {OWN_KEYS[key]}"
    return "set it in [estimator]" if key in MEMBERS else ""


def load(path: str | Path = ROOT / "job.toml") -> Job:
    """The job that the file describes.

    Raises:
        JobError: with every problem of the file at once, each naming key, value and expectation.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise JobError(f"{path} cannot be read ({error.strerror}); name the file with --job") from error
    except UnicodeDecodeError as error:
        raise JobError(f"{path} is not UTF-8 text, which TOML requires; save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        said = "its tables or lists are nested too deeply" if isinstance(error, RecursionError) else str(error)
        twice = r"Cannot (overwrite a value|declare \(.*\) twice)"
        said = re.sub(twice, "a key or a table of this name stands further up", said)
        hint = "no value of TOML: text stands in straight quotes, true and false are lower case"
        said = said.replace("Invalid value", hint)
        raise JobError(f"{path} is not valid TOML: {said}; correct that line") from error
    problems: list[str] = []
    job = _build(Job, table, "", problems)
    if problems:
        raise JobError("\n".join(problems))
    return job


def _build(cls: type, table: dict[str, Any], prefix: str, problems: list[str]) -> Any:
    """An instance of the dataclass `cls` from a TOML table; what does not fit goes to `problems`."""
    known = {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            hint = home(key) or near(key, known)
            if prefix == "tune." and not _is_a(value, Value):
                hint = "set it in [tune.ranges]"
            problems.append(f"{prefix}{show(key)[1:-1]} = {show(value)} is not a key of job.toml; {hint}")
            continue
        values[key] = _typed(known[key], value, prefix, problems)
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            problems.append(f"{prefix}{name} is missing; set it in job.toml")
    return None if problems else cls(**values)


def _typed(f: Any, value: Any, prefix: str, problems: list[str]) -> Any:
    """`value` as field `f` wants it: a table's entries are judged one by one."""
    key, wanted = prefix + f.name, f.type
    if hasattr(wanted, "__dataclass_fields__") and isinstance(value, dict):
        return _build(wanted, value, f"{f.name}.", problems)
    judged = {key: (value, wanted)}
    if get_origin(wanted) is dict and isinstance(value, dict):
        judged = {f"{key}.{show(name)[1:-1]}": (item, get_args(wanted)[1]) for name, item in value.items()}
    before = len(problems)
    for name, (item, kind) in judged.items():
        if not _is_a(item, kind):
            expected = EXPECTED.get(get_origin(kind) or kind) or EXPECTED.get(kind) or f"a table, [{key}]"
            shown = f"a {type(item).__name__}" if name.startswith("environment.") else show(item)  # perhaps a secret
            if name.startswith("hyperparameters.") and isinstance(item, dict | list):
                expected += "; what is to be searched stands in [tune.ranges]"
            problems.append(f"{name} = {shown} is not valid: expected {expected}")
    low, high, choices = (f.metadata.get(name) for name in ("low", "high", "choices"))
    if len(problems) == before and choices and value not in choices:
        problems.append(f"{key} = {show(value)} is not valid: expected one of {', '.join(choices)}")
    if len(problems) == before and low is not None and not low <= value <= high:  # nan is not
        problems.append(f"{key} = {show(value)} is not valid: expected a number from {low:g} to {high:g}")
    return value


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a TOML value is of the type. bool is no int here, and an int is accepted for a float."""
    if isinstance(kind, UnionType):
        return any(_is_a(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is_a(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_is_a(item, get_args(kind)[1]) for item in value.values())
    return kind is Any or type(value) is kind or (kind is float and type(value) is int)


def show(value: Any) -> str:
    """A value about as TOML writes it, cut to one short line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:79] + "…"
