"""Search the ranges of job.toml's [tune] for the options with the best MONITOR of src/options.py.

SageMaker's hyperparameter tuning does it. Every training job of it is the one of job.toml, but for
the options in the ranges, what a tuning job cannot carry, and a folder for checkpoints, which all
of them might share: one that is interrupted begins again.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from smlightning.errors import UserError
from smlightning.launch import aws, request, resources, sending
from smlightning.launch.findings import Finding, error, refused, warning
from smlightning.launch.job import KEYS, Job, JobError, Value, leaves, show
from smlightning.launch.preflight.hyperparameters import CONFLICT, conflicts, hyperparameters
from smlightning.launch.request import Destination
from smlightning.options import Option, declared_options
from smlightning.project import Project

SCALES = ("Auto", "Logarithmic", "ReverseLogarithmic", "Linear")  # of HyperParameterScalingType
RANGE_EXAMPLE = 'as in { min = 1e-4, max = 1e-2, scale = "Logarithmic" }'

# Members of CreateTrainingJob that HyperParameterTrainingJobDefinition has too.
CARRIED = (
    "RoleArn",
    "OutputDataConfig",
    "StoppingCondition",
    "InputDataConfig",
    "VpcConfig",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
    "RetryStrategy",
    "Environment",
)
ALGORITHM = ("TrainingInputMode", "MetricDefinitions", "TrainingImage")  # of AlgorithmSpecification
RESOURCES = ("VolumeKmsKeyId", "InstanceCount", "InstanceType", "VolumeSizeInGB")
# Members that a search has in other places, and checkpoints, of which [spot] is told.
OTHERWISE = ("TrainingJobName", "HyperParameters", "Tags", "CheckpointConfig.S3Uri")
# By these the SDK's HyperparameterTuner.attach knows the estimator.
ESTIMATOR = {
    "sagemaker_estimator_class_name": "PyTorch",
    "sagemaker_estimator_module": "sagemaker.pytorch.estimator",
}


def check(job: Job, project: Project) -> Iterator[Finding]:
    """[tune] as preflight judges [hyperparameters]: options that exist, values that they take."""
    if not job.tune.ranges:
        cure = "add one, as in lr = { min = 1e-4, max = 1e-2 }"
        yield error("tune.ranges", "there are none to search", cure)
    lost = [key.path for key in KEYS if _is_lost(key.member) and _is_set(job, key.path)]
    lost += [f"request.{path}" for path, _ in leaves(job.request) if not _is_carried(path)]
    for key in lost:
        if key.startswith("request.ResourceConfig."):
            cure = "remove it, or submit single jobs"
            yield error(key, "a tuning job cannot carry it", cure)
        else:
            yield warning(key, "a tuning job cannot carry it", "its jobs run without it")
    if len(resources.alternatives(job)) > 1:
        yield error("instance_type", "a tuning job takes one type", "name the first alone")
    if job.spot.enabled:
        problem = "the jobs of a search keep no checkpoints"
        yield warning("spot", problem, "one that is interrupted begins again")
    yield from ranges(job, project)


def _is_lost(member: str) -> bool:
    """Whether the member that a key of job.toml sets reaches no job of a search."""
    return bool(member) and member not in OTHERWISE and not _is_carried(member)


def _is_set(job: Job, path: str) -> bool:
    value: Any = job
    for name in path.split("."):
        value = getattr(value, name)
    return bool(value)


def _is_carried(path: str) -> bool:
    """Whether a member of [request] reaches the jobs of a search."""
    structure, _, member = path.partition(".")
    if structure == "AlgorithmSpecification":
        return member in ALGORITHM
    if structure == "ResourceConfig":
        return member in RESOURCES
    return structure in CARRIED


# AWS's defaults for one tuning job; larger values have to be asked for
# (https://docs.aws.amazon.com/sagemaker/latest/dg/automatic-model-tuning-limits.html).
USUAL_JOBS, USUAL_PARALLEL = 750, 10


def ranges(job: Job, project: Project) -> Iterator[Finding]:
    """What is wrong with [tune], whether or not it is to be searched now."""
    for key, value, usual in (
        ("max_jobs", job.tune.max_jobs, USUAL_JOBS),
        ("parallel", job.tune.parallel, USUAL_PARALLEL),
    ):
        if value > usual:
            problem = f"{value} is above AWS's default of {usual} for one search"
            yield warning(f"tune.{key}", problem, "lower it, or see that your quota was raised")
    if job.tune.parallel > job.tune.max_jobs:
        problem = f"{job.tune.parallel} is above max_jobs"
        yield error("tune.parallel", problem, f"at most {job.tune.max_jobs}")
    for option, given in job.tune.ranges.items():
        yield from _searched(job, project, option, given)


def _searched(job: Job, project: Project, option: str, given: Any) -> Iterator[Finding]:
    """What is wrong with one entry of [tune.ranges]."""
    key = f"tune.ranges.{option}"
    if option in job.hyperparameters:
        cure = "tuning takes its values from there"
        yield warning(f"hyperparameters.{option}", "[tune.ranges] has it too", cure)
    if option == "seed" and not (isinstance(given, list) and len(given) == 1):
        problem = "each seed may divide the data anew, and then these jobs' scores do not compare"
        cure = "search other options, and repeat the best job with other seeds"
        yield warning(key, problem, cure)
    if isinstance(given, dict):
        yield from _range(key, option, given, project)
        values = [given[end] for end in ("min", "max") if _is_number(given.get(end))]
    elif isinstance(given, list) and given and all(isinstance(value, Value) for value in given):
        yield from _list(key, given)
        values = given
    else:
        problem, cure = "neither a range nor a list", "as in { min = 1, max = 8 }, or [16, 32, 64]"
        yield error(key, problem, cure)
        return
    known = option in _declared(project)
    for value in values:
        alone = job.replace(hyperparameters={option: value})
        for finding in hyperparameters(alone, project):
            cure = "correct the range" if known else finding.cure
            yield Finding(finding.level, key, finding.problem, cure)


def _range(key: str, option: str, given: dict[str, Any], project: Project) -> Iterator[Finding]:
    """What is wrong with {min, max, scale}."""
    numbers = [given[end] for end in ("min", "max") if _is_number(given.get(end))]
    if len(numbers) < 2 or given.keys() - {"min", "max", "scale"}:
        yield error(key, f"{show(given)} is no range", RANGE_EXAMPLE)
        return
    low, high = numbers
    scale = given.get("scale", "Auto")
    declared = _declared(project)
    kind = declared[option].type if option in declared else float  # unknown: said elsewhere
    if not low < high:
        problem = f"min = {show(low)} is not below max = {show(high)}"
        yield error(key, problem, "raise max, or lower min")
    elif not isinstance(kind, type) or not issubclass(kind, int | float) or kind is bool:
        yield error(key, "a range, and the option is no number", "give a list of its values")
    elif scale not in SCALES:
        cure = f"expected one of {', '.join(SCALES)}"
        yield error(key, f"scale = {show(scale)} is none of AWS's", cure)
    elif scale == "Logarithmic" and low <= 0:
        cure = "raise min, or leave scale out"
        yield error(key, "a Logarithmic scale needs a min above 0", cure)
    elif scale == "ReverseLogarithmic" and (low < 0 or high >= 1 or issubclass(kind, int)):
        problem = "a ReverseLogarithmic scale is for fractions from 0 to below 1"
        yield error(key, problem, "leave scale out")


def _list(key: str, given: list[Any]) -> Iterator[Finding]:
    """Two different numbers may have been meant as a range."""
    if len(given) == 2 and all(map(_is_number, given)) and given[0] != given[1]:
        low, high = show(min(given)), show(max(given))
        problem = f"{show(given)} is a list of two values, and no other is tried"
        cure = f"for all between them write {{ min = {low}, max = {high} }}, else leave it"
        yield warning(key, problem, cure)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # bool is an int, and no number here


def _declared(project: Project) -> dict[str, Option]:
    return declared_options(project.options().cls)


def judged(
    job: Job, project: Project, findings: list[Finding], destination: Destination | None = None
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Preflight's findings, and all of this file's that take no network; and the request.

    There is no request where none can be built. Without a destination it is a dry run's.
    """
    alone = [finding for finding in findings if finding.key != CONFLICT]
    findings = [*alone, *conflicts(first_tried(job), project), *check(job, project)]
    try:
        destination = destination or request.dry_destination(job)
        body = tuning_request(job, project, destination, job_name(job))
    except UserError as failure:
        if not refused(findings):  # else it is one of these
            own = [error("tune", failure.problem, failure.cure or "correct it")]
            findings += failure.findings if isinstance(failure, JobError) else own
        return findings, None
    limits = aws.violations(body, aws.shape("CreateHyperParameterTuningJobRequest"))
    findings += [
        error(f"tune: {violation.path}", violation.problem, violation.cure) for violation in limits
    ]
    return findings, body


def first_tried(job: Job) -> Job:
    """The job with the first value of each range, or the least, as its hyperparameter."""
    tried = dict(job.hyperparameters)
    for option, given in job.tune.ranges.items():
        if isinstance(given, list) and given and isinstance(given[0], Value):
            tried[option] = given[0]
        elif isinstance(given, dict) and _is_number(given.get("min")):
            tried[option] = given["min"]
    return job.replace(hyperparameters=tried)


def job_name(job: Job) -> str:
    """A tuning job's name: at most 32 characters, to which AWS adds those of its jobs."""
    return f"{job.name[:16].rstrip('-')}-{datetime.now(UTC):%y%m%d-%H%M%S}"


def carried(job: Job) -> Job:
    """The job without what a tuning job has not: keep-alive, stop forwarding, checkpoints."""
    return job.replace(keep_alive_s=0, forward_stop=False, checkpoint_s3="")


def tuning_request(
    job: Job, project: Project, destination: Destination, name: str
) -> dict[str, Any]:
    """CreateHyperParameterTuningJob, built on the training job's request.

    Raises:
        UserError: no request can be built of this job.
    """
    goal = project.options()
    single = request.training_request(carried(job), project, destination, name)
    options = {**single["HyperParameters"], **{k: json.dumps(v) for k, v in ESTIMATOR.items()}}
    static = {key: value for key, value in options.items() if key not in job.tune.ranges}
    config, algorithm = single["ResourceConfig"], single["AlgorithmSpecification"]
    definition = {
        "StaticHyperParameters": static,
        "AlgorithmSpecification": {key: algorithm[key] for key in ALGORITHM},
        "HyperParameterTuningResourceConfig": {
            key: config[key] for key in RESOURCES if key in config
        },
        **{member: single[member] for member in CARRIED if member in single},
    }
    body = {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Bayesian",
            "HyperParameterTuningJobObjective": {
                "Type": "Maximize" if goal.mode == "max" else "Minimize",
                "MetricName": goal.monitor,
            },
            "ResourceLimits": {
                "MaxNumberOfTrainingJobs": job.tune.max_jobs,
                "MaxParallelTrainingJobs": job.tune.parallel,
            },
            "ParameterRanges": parameter_ranges(job, project),
            "TrainingJobEarlyStoppingType": "Off",
        },
        "TrainingJobDefinition": definition,
    }
    if "Tags" in single:
        body["Tags"] = single["Tags"]
    return request.with_members("HyperParameterTuningJob", body, job.create)


def parameter_ranges(job: Job, project: Project) -> dict[str, list[dict[str, Any]]]:
    """[tune.ranges] as AWS has them: continuous, of whole numbers, or a list of values."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "ContinuousParameterRanges": [],
        "IntegerParameterRanges": [],
        "CategoricalParameterRanges": [],
    }
    declared = _declared(project)
    for option, given in job.tune.ranges.items():
        if isinstance(given, list):
            values = [json.dumps(str(value)) for value in given]
            kinds["CategoricalParameterRanges"].append({"Name": option, "Values": values})
            continue
        if not isinstance(given, dict) or not {"min", "max"} <= given.keys():
            raise UserError(f"tune.ranges.{option} is no range", RANGE_EXAMPLE)
        kind = declared[option].type if option in declared else float
        whole = isinstance(kind, type) and issubclass(kind, int)
        kinds["IntegerParameterRanges" if whole else "ContinuousParameterRanges"].append(
            {
                "Name": option,
                "MinValue": str(given["min"]),
                "MaxValue": str(given["max"]),
                "ScalingType": given.get("scale", "Auto"),
            }
        )
    return {kind: entries for kind, entries in kinds.items() if entries}


def submit(job: Job, project: Project, destination: Destination, body: dict[str, Any]) -> str:
    """Upload the code, start the search, and return its name without waiting for it.

    Args:
        job: of job.toml.
        project: whose src/ is uploaded.
        destination: that the request was built for; its bucket is created where it is missing.
        body: CreateHyperParameterTuningJob, as it was judged, sent as it stands.
    """
    name = str(body["HyperParameterTuningJobName"])
    sending.ensure_bucket(job, destination)
    output = body["TrainingJobDefinition"]["OutputDataConfig"]
    sending.upload(job, project, destination, name, output)
    aws.client("sagemaker", job.region).create_hyper_parameter_tuning_job(**body)
    return name
