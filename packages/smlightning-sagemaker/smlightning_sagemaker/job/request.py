"""Build CreateTrainingJob from a `Job`: one dictionary with AWS's names, which boto3 sends.

Preflight checks this request, a rehearsal plays it, and `submit` sends it. The notebook's
estimator sends the same (tests/tools/job/test_estimator.py).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from smlightning import hub, options
from smlightning.errors import UserError
from smlightning.reports import log
from smlightning_sagemaker.job import aws, images, launchers
from smlightning_sagemaker.job.job import FILE_SYSTEM_CHANNEL, KEYS, S3_CHANNEL, Job
from smlightning_sagemaker.project import Project

# In a dry run these replace the values that only an account knows.
DRY_ACCOUNT = "000000000000"
DRY_ROLE = "placeholder-for-dry-run"

ARCHIVE = "sourcedir.tar.gz"
MOST_METRICS = 40  # AlgorithmSpecification.MetricDefinitions, botocore's MetricDefinitionList
CODE_CHANNEL = "code"  # of an isolated job, as the SDK names it
OPTION = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Destination:
    """ARN of the job's role, and the bucket for code, models and checkpoints."""

    role: str
    bucket: str


def job_name(job: Job) -> str:
    """A name for each launch: at most 63 characters when `name` has at most 47."""
    return f"{job.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def dry_run(job: Job, project: Project, name: str = "") -> dict[str, Any]:
    """CreateTrainingJob with placeholders for the account's values; it needs no credentials.

    Raises:
        UserError: the job's image is unknown.
    """
    return training_request(job, project, dry_destination(job), name or job_name(job))


def dry_destination(job: Job) -> Destination:
    """Role and bucket of job.toml, else placeholders."""
    role = job.role or DRY_ROLE
    if not role.startswith("arn:"):
        role = f"arn:{aws.partition(job.region)}:iam::{DRY_ACCOUNT}:role/{role}"
    account = (role.split(":") + [""] * 5)[4]
    return Destination(role, job.bucket or f"sagemaker-{job.region}-{account}")


def training_request(
    job: Job, project: Project, destination: Destination, name: str
) -> dict[str, Any]:
    """The complete CreateTrainingJob request.

    Args:
        job: the content of job.toml.
        project: its src/options.py names the metrics.
        destination: role and bucket.
        name: name of the training job.

    Raises:
        UserError: the job's image is unknown.
    """
    given = members_as_they_stand(job)
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "RoleArn": destination.role,
        "AlgorithmSpecification": algorithm(job, project),
        "OutputDataConfig": {"S3OutputPath": output_path(job, destination)},
    }
    request = merge(request, given)
    if job.spot.enabled:
        request["StoppingCondition"]["MaxWaitTimeInSeconds"] = job.spot.max_wait_s
    if job.other_hosts:
        del request["ResourceConfig"]["InstanceType"]
        preferred = job.other_hosts.get("InstancePreferences", [])
        if not preferred or any("InstanceCount" in each for each in preferred):
            del request["ResourceConfig"]["InstanceCount"]
    if checkpoints := checkpoint_path(job, destination, name):
        set_member(request, "CheckpointConfig.S3Uri", checkpoints)
    if variables := environment(job):
        request["Environment"] = variables
    if job.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in job.tags.items()]
    if "ProfilerConfig" not in {*job.request, *given}:
        request["ProfilerConfig"] = {"DisableProfiler": True}  # nobody reads its output
    request = merge(request, job.request)
    add_inputs(request, job, archive_uri(job, destination, name))
    return {
        member: value for member, value in request.items() if value is not False or member in given
    }


def algorithm(job: Job, project: Project) -> dict[str, Any]:
    """The image, how it is started, and the metrics that CloudWatch reads from the log."""
    specification: dict[str, Any] = {
        "TrainingImage": images.image_uri(job),
        "TrainingInputMode": "File",
        "MetricDefinitions": metric_definitions(project),
    }
    if job.forward_stop:
        specification["ContainerEntrypoint"] = launchers.FORWARDING
    return specification


def metric_definitions(project: Project) -> list[dict[str, str]]:
    """CloudWatch metrics, read from the lines that reports/log.py formats: they cannot drift.

    The metrics of METRICS, and memory if AWS's limit has room.
    """
    own = project.options().metrics
    names = list(dict.fromkeys([*own, *log.MEMORY]))[: max(len(own), MOST_METRICS)]
    return [{"Name": name, "Regex": log.metric_regex(name)} for name in names]


def members_as_they_stand(job: Job) -> dict[str, Any]:
    """The members whose value is the value of a key, as job.py declares them.

    Empty values are left out; 0 and false are sent if they are not the default.
    """
    members: dict[str, Any] = {}
    for key in KEYS:
        value = key.of(job)
        is_sent = value or (isinstance(value, bool | int | float) and value != key.default)
        if key.member and not key.derived and is_sent:
            set_member(members, key.member, value)
    return members


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A new table with the values of both; `above` wins, and tables in both are merged."""
    merged = dict(below)
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            value = merge(merged[name], value)
        merged[name] = value
    return merged


def set_member(members: dict[str, Any], path: str, value: Any) -> None:
    """Set a member by its path, as in `ResourceConfig.InstanceType`, and create its tables."""
    *tables, name = path.split(".")
    for table in tables:
        members = members.setdefault(table, {})
    members[name] = value


def output_path(job: Job, destination: Destination) -> str:
    """The folder that models go to, and code and checkpoints below it."""
    chosen = job.request.get("OutputDataConfig", {}).get("S3OutputPath")
    if chosen:
        return str(chosen)
    return f"s3://{destination.bucket}/"


def checkpoint_path(job: Job, destination: Destination, name: str) -> str:
    """The S3 folder of the checkpoints; empty: none are kept."""
    if job.checkpoint_s3 != "auto":
        return job.checkpoint_s3
    return f"{output_path(job, destination).rstrip('/')}/{name}/checkpoints"


def archive_uri(job: Job, destination: Destination, name: str) -> str:
    """The S3 address of the code's archive."""
    return f"{output_path(job, destination).rstrip('/')}/{name}/source/{ARCHIVE}"


def environment(job: Job) -> dict[str, str]:
    """Variables of the container: [environment], and those for the instance and other keys."""
    variables = {**images.efa_variables(job), **job.environment}
    for variable, name in job.secrets.items():
        variables[f"{hub.SECRET_FOR}{variable}"] = name
    return variables


def add_inputs(request: dict[str, Any], job: Job, code: str) -> None:
    """Add channels and hyperparameters.

    An isolated job cannot download its code: SageMaker copies it as a channel (SDK v2,
    Framework.CONTAINER_CODE_CHANNEL).
    """
    channels = [channel(name, given) for name, given in job.channels.items()]
    unpacked = code
    if request.get("EnableNetworkIsolation"):
        channels.append(channel(CODE_CHANNEL, code))
        unpacked = f"/opt/ml/input/data/{CODE_CHANNEL}/{ARCHIVE}"
    if channels:
        request["InputDataConfig"] = channels
    name = request["TrainingJobName"]
    request["HyperParameters"] = encoded(hyperparameters(job), name, job.region, unpacked)


def channel(name: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
    """An entry of InputDataConfig, from an S3 address or a table of job.toml."""
    table = {"s3_data": given} if isinstance(given, str) else given
    known = channel_keys(table)
    entry: dict[str, Any] = {"ChannelName": name}
    if known is FILE_SYSTEM_CHANNEL:
        table = {"file_system_access_mode": "ro", **table}
    elif _sources(table) <= {"S3DataSource"}:
        table = {"s3_data_type": "S3Prefix", "distribution": "FullyReplicated", **table}
    for key, value in table.items():
        if key in known:
            set_member(entry, known[key], value)
    return merge(entry, {key: value for key, value in table.items() if key not in known})


def channel_keys(table: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a channel that is a table, and the member that each sets."""
    on_file_system = "file_system_id" in table or "FileSystemDataSource" in _sources(table)
    return FILE_SYSTEM_CHANNEL if on_file_system else S3_CHANNEL


def _sources(table: Mapping[str, Any]) -> set[str]:
    """The members of a channel's DataSource that job.toml sets by AWS's names."""
    given = table.get("DataSource", {})
    return set(given) if isinstance(given, dict) else set()


def hyperparameters(job: Job) -> dict[str, Any]:
    """The options of train.py, and the flags by which SageMaker's toolkit selects the launcher.

    Raises:
        UserError: a name cannot be that of an option, and a shell would read it.
    """
    for name in job.hyperparameters:
        if not OPTION.fullmatch(name):
            problem = f"found {name!r}, expected letters, digits, _, - and ."
            raise UserError(f"hyperparameters: {problem}", "correct it")
    given = {name: options.encode(value) for name, value in job.hyperparameters.items()}
    return {**given, **launchers.flags(job)}


def encoded(values: Mapping[str, Any], name: str, region: str, code: str) -> dict[str, str]:
    """Hyperparameters as JSON texts, with those by which the toolkit finds train.py.

    These five are the SDK's (Framework._script_mode_hyperparam_update).
    """
    toolkit = {
        "sagemaker_submit_directory": code,
        "sagemaker_program": "train.py",
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": name,
        "sagemaker_region": region,
    }
    return {key: json.dumps(value) for key, value in {**values, **toolkit}.items()}
