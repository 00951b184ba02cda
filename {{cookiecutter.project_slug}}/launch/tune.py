"""Search the ranges of job.toml's [tune] for the options with the best MONITOR, by SageMaker's hyperparameter tuning.

Every training job of it is the one of job.toml, but for the options in the ranges, what a tuning job cannot carry,
and a folder for checkpoints, which all of them might share: one that is interrupted begins again.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from launch import aws, preflight, request, v3
from launch.findings import Finding, error, from_sentence, refused, warning
from launch.job import Job, Value, show
from options import MODE, MONITOR, OPTIONS
from runtime import command_line
from runtime.report import UserError

SCALES = ("Auto", "Logarithmic", "ReverseLogarithmic", "Linear")  # of HyperParameterScalingType


def check(job: Job) -> Iterator[Finding]:
    """[tune] as preflight judges [hyperparameters]: options that exist, and values that they take."""
    if v3.installed():
        yield error("tune", "it needs the estimator of SDK v2, and v3 is installed here", "use .venv/bin/python")
    if not job.tune.ranges:
        yield error("tune.ranges", "there are none to search", "add one, as in lr = { min = 1e-4, max = 1e-2 }")
    for key in ("forward_stop", "keep_alive_s", "estimator.enable_remote_debug"):
        if getattr(job, key, job.estimator.get(key.rpartition(".")[2])):
            yield warning(key, "a tuning job cannot carry it", "its jobs run without it")
    if job.spot.enabled:
        yield warning("spot", "the jobs of a search keep no checkpoints", "one that is interrupted begins again")
    if "training_plan" in job.estimator:
        yield error("estimator.training_plan", "a tuning job cannot carry it", "remove it, or submit single jobs")
    yield from ranges(job)


def ranges(job: Job) -> Iterator[Finding]:
    """What is wrong with [tune] whether or not it is to be searched now, as preflight judges it."""
    if job.tune.parallel > job.tune.max_jobs:
        yield error("tune.parallel", f"{job.tune.parallel} is above max_jobs", f"at most {job.tune.max_jobs}")
    declared = command_line.declared(OPTIONS)
    for option, given in job.tune.ranges.items():
        key, values = f"tune.ranges.{option}", given
        kind = declared[option].type if option in declared else float  # which is said below
        if option in job.hyperparameters:
            yield warning(f"hyperparameters.{option}", "[tune.ranges] has it too", "tuning takes its values from there")
        if option == "seed" and not (isinstance(given, list) and len(given) == 1):
            cure = "search other options, and repeat the best job with other seeds"
            yield warning(key, "each seed may divide the data anew, and then these jobs' scores do not compare", cure)
        if isinstance(given, dict):
            values = [given[end] for end in ("min", "max") if type(given.get(end)) in (int, float)]
            if len(values) < 2 or given.keys() - {"min", "max", "scale"}:
                example = 'as in { min = 1e-4, max = 1e-2, scale = "Logarithmic" }'
                yield error(key, f"{show(given)} is no range", example)
            elif not values[0] < values[1]:
                lower, upper = map(show, values)
                yield error(key, f"min = {lower} is not below max = {upper}", "raise max, or lower min")
            elif not isinstance(kind, type) or not issubclass(kind, int | float) or kind is bool:
                yield error(key, "a range, and the option is no number", "give a list of its values")
            elif (scale := given.get("scale", "Auto")) not in SCALES:
                yield error(key, f"scale = {show(scale)} is none of AWS's", f"expected one of {', '.join(SCALES)}")
            elif scale == "Logarithmic" and values[0] <= 0:
                yield error(key, "a Logarithmic scale needs a min above 0", "raise min, or leave scale out")
            elif scale == "ReverseLogarithmic" and (values[0] < 0 or values[1] >= 1 or issubclass(kind, int)):
                yield error(key, "a ReverseLogarithmic scale is for fractions from 0 to below 1", "leave scale out")
        elif not isinstance(given, list) or not given or not all(isinstance(value, Value) for value in given):
            yield error(key, "neither a range nor a list", "as in { min = 1, max = 8 }, or [16, 32, 64]")
            continue
        elif len(given) == 2 and all(type(value) in (int, float) for value in given) and given[0] != given[1]:
            cure = f"for all between them write {{ min = {show(min(given))}, max = {show(max(given))} }}, else leave it"
            yield warning(key, f"{show(given)} is a list of two values, and no other is tried", cure)
        for value in values:
            for found in preflight.hyperparameters(replace(job, hyperparameters={option: value})):
                yield replace(found, key=key, cure="correct the range" if option in declared else found.cure)


def judged(job: Job, found: list[Finding]) -> tuple[list[Finding], dict[str, Any] | None]:
    """What preflight `found`, and all of this that takes no network; and the request, if one can be made."""
    found, made = [*found, *check(job)], None
    try:
        made = request.dry_run(job, tuning_request, job_name(job))
        limits = aws.violations(made, aws.shape("CreateHyperParameterTuningJobRequest"))
        found += [error(f"tune: {path}", problem, cure) for path, problem, cure in limits]
    except UserError as problem:
        if not refused(found):  # else it is one of these
            found.append(from_sentence("tune", str(problem)))
    return found, made


def carried(job: Job) -> Job:
    """The job without keep-alive, stop forwarding and checkpoints, which a tuning job neither has nor pays for."""
    return replace(job, keep_alive_s=0, forward_stop=False, checkpoint_s3="")


def job_name(job: Job) -> str:
    """A tuning job's name has at most 32 characters, to which AWS adds those of its training jobs."""
    return f"{job.name[:16].rstrip('-')}-{datetime.now(UTC):%y%m%d-%H%M%S}"


def tuner(job: Job, session: Any, role: str, bucket: str, name: str) -> Any:
    """The SDK's HyperparameterTuner around the job's own estimator."""
    sdk = request.sdk().tuner
    declared, ranges = command_line.declared(OPTIONS), dict[str, Any]()
    for option, given in job.tune.ranges.items():
        if isinstance(given, list):
            ranges[option] = sdk.CategoricalParameter(given)
        else:
            whole = issubclass(declared[option].type, int)
            kind = sdk.IntegerParameter if whole else sdk.ContinuousParameter
            ranges[option] = kind(given["min"], given["max"], scaling_type=given.get("scale", "Auto"))
    made = request.estimator(carried(job), session, role, bucket, name)
    counts: dict[str, Any] = {"max_jobs": job.tune.max_jobs, "max_parallel_jobs": job.tune.parallel}
    goal = "Maximize" if MODE == "max" else "Minimize"
    return sdk.HyperparameterTuner(made, MONITOR, ranges, request.metric_definitions(), objective_type=goal, **counts)


def tuning_request(job: Job, session: Any, role: str, bucket: str, name: str) -> dict[str, Any]:
    """CreateHyperParameterTuningJob, by what the tuner's fit() does before it sends."""
    made = tuner(job, session, role, bucket, name)
    made._prepare_estimator_for_tuning(made.estimator, None, name)
    made._prepare_for_tuning(name)
    arguments = request.sdk().tuner._TuningJob._get_tuner_args(made, request.channels(job))
    return dict(session._get_tuning_request(**arguments))
