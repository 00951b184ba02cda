"""Search the ranges of job.toml's [tune] for the options with the best MONITOR of src/options.py.

SageMaker's hyperparameter tuning starts the training jobs. Each is the job of job.toml, except for
the options in the ranges, settings that a tuning job cannot have, and the folder for checkpoints,
which all jobs would share: an interrupted job begins again.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from smlightning.errors import UserError
from smlightning.options import declared_options
from smlightning_sagemaker.findings import Finding, error, from_error, has_errors, warning
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import KEYS, Job, JobError, Range, Value, leaves
from smlightning_sagemaker.job.request import Destination
from smlightning_sagemaker.preflight.hyperparameters import CONFLICT, conflicts, hyperparameters
from smlightning_sagemaker.project import Project

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
# Members that a search has in other places, and checkpoints, which `check` reports with [spot].
OTHERWISE = ("TrainingJobName", "HyperParameters", "Tags", "CheckpointConfig.S3Uri")
# By these the SDK's HyperparameterTuner.attach knows the estimator.
ESTIMATOR = {
    "sagemaker_estimator_class_name": "PyTorch",
    "sagemaker_estimator_module": "sagemaker.pytorch.estimator",
}


def check(job: Job, project: Project) -> Iterator[Finding]:
    """Findings of [tune], and of settings that a tuning job does not support."""
    if not job.tune.ranges:
        cure = "add one, as in lr = { min = 1e-4, max = 1e-2 }"
        yield error("tune.ranges", "is empty", cure)
    lost = [key.path for key in KEYS if _is_lost(key.member) and key.of(job)]
    lost += [f"request.{path}" for path, _ in leaves(job.request) if not _is_carried(path)]
    for key in lost:
        if key.startswith("request.ResourceConfig."):
            cure = "remove it, or submit single jobs"
            yield error(key, "is not possible in a tuning job", cure)
        else:
            yield warning(key, "is not possible in a tuning job", "its jobs run without it")
    if job.spot.enabled:
        problem = "the jobs of a search keep no checkpoints, so interrupted jobs start anew"
        yield warning("spot", problem, "set spot.enabled = false to lose no work")
    yield from ranges(job, project)


def _is_lost(member: str) -> bool:
    """Whether the member that a key of job.toml sets reaches no job of a search."""
    return bool(member) and member not in OTHERWISE and not _is_carried(member)


def _is_carried(path: str) -> bool:
    """Whether a member of [request] reaches the jobs of a search."""
    structure, _, member = path.partition(".")
    if structure == "AlgorithmSpecification":
        return member in ALGORITHM
    if structure == "ResourceConfig":
        return member in RESOURCES
    return structure in CARRIED


def ranges(job: Job, project: Project) -> Iterator[Finding]:
    """Findings of [tune.ranges], which preflight reports too."""
    for option, given in job.tune.ranges.items():
        if option in job.hyperparameters:
            cure = "remove one: tuning uses [tune.ranges]"
            yield warning(f"hyperparameters.{option}", "[tune.ranges] has it too", cure)
        for value in tried(given):
            single = job.replace(hyperparameters={option: value})
            for finding in hyperparameters(single, project):
                yield replace(finding, key=f"tune.ranges.{option}")


def tried(given: Range | list[Value]) -> list[Value]:
    """The ends of a range, or the values of a list."""
    return [given.min, given.max] if isinstance(given, Range) else given


def judged(
    job: Job, project: Project, findings: list[Finding], destination: Destination | None = None
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Preflight's findings and those of a search; and its request, None if none can be built.

    Without a destination it is a dry run's.
    """
    others = [finding for finding in findings if finding.key != CONFLICT]
    findings = [*others, *conflicts(first_tried(job), project), *check(job, project)]
    try:
        destination = destination or request.dry_destination(job)
        body = tuning_request(job, project, destination, job_name(job))
    except UserError as failure:
        if isinstance(failure, JobError):
            findings += failure.findings
        elif not has_errors(findings):  # otherwise it is one of these
            findings.append(from_error("tune", failure))
        return findings, None
    return findings, body


def first_tried(job: Job) -> Job:
    """The job with the first value of each range, or the least, as its hyperparameter."""
    first = {option: tried(given)[0] for option, given in job.tune.ranges.items()}
    return job.replace(hyperparameters={**job.hyperparameters, **first})


def job_name(job: Job) -> str:
    """A tuning job's name: at most 32 characters, to which AWS adds those of its jobs."""
    return f"{job.name[:16].rstrip('-')}-{datetime.now(UTC):%y%m%d-%H%M%S}"


def carried(job: Job) -> Job:
    """The job without settings that a tuning job cannot have."""
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
    declared = declared_options(project.options().cls)
    for option, given in job.tune.ranges.items():
        if isinstance(given, list):
            values = [json.dumps(str(value)) for value in given]
            kinds["CategoricalParameterRanges"].append({"Name": option, "Values": values})
            continue
        kind = declared[option].type if option in declared else float
        whole = isinstance(kind, type) and issubclass(kind, int)
        kinds["IntegerParameterRanges" if whole else "ContinuousParameterRanges"].append(
            {
                "Name": option,
                "MinValue": str(given.min),
                "MaxValue": str(given.max),
                "ScalingType": given.scale,
            }
        )
    return {kind: entries for kind, entries in kinds.items() if entries}
