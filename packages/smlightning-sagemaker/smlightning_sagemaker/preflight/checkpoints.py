"""Checkpoints in S3: a job that SageMaker starts again resumes, from a folder of its own."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning_sagemaker.findings import Finding, error, warning
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.project import Project


def restarts(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """A job that SageMaker starts again resumes, and has a checkpoint by then.

    https://docs.aws.amazon.com/sagemaker/latest/dg/model-managed-spot-training.html
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_RetryStrategy.html
    """
    if not (job.spot.enabled or "RetryStrategy" in request):
        return
    why, level = ("with spot", error) if job.spot.enabled else ("with RetryStrategy", warning)
    if not job.checkpoint_s3:
        problem = f"{why}, a job without checkpoints loses all at each restart"
        yield level("checkpoint_s3", problem, 'set it to "auto"')
    if job.hyperparameters.get("resume", "auto") != "auto":
        problem = f"{why}, each restart would begin there again, and lose its progress"
        yield level("hyperparameters.resume", problem, 'set it to "auto"')
    minutes = job.hyperparameters.get("checkpoint_minutes", 0)
    by_steps = job.hyperparameters.get("checkpoint_steps")
    if isinstance(minutes, int | float) and minutes * 60 >= job.max_run_s and not by_steps:
        most = f"max_run_s ends the job after {job.max_run_s / 60:g} minutes"
        hint = "set it lower: a restart loses what came after the last checkpoint"
        yield warning("hyperparameters.checkpoint_minutes", f"found {minutes}, and {most}", hint)


def whole_bucket(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """SageMaker copies all of CheckpointConfig.S3Uri to each host (API_CheckpointConfig)."""
    if re.fullmatch(r"s3://[^/]+/*", job.checkpoint_s3):
        problem = f"{job.checkpoint_s3} is a whole bucket, and every host would download it"
        yield error("checkpoint_s3", problem, "write the address of a folder in it")


def local_path(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """SageMaker copies the folder in which training keeps checkpoints (API_CheckpointConfig)."""
    if "LocalPath" in request.get("CheckpointConfig", {}):
        problem = "training keeps its checkpoints in /opt/ml/checkpoints"
        yield error("request.CheckpointConfig.LocalPath", problem, "remove it")


def within_data(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """No channel holds the checkpoints: a restart, or the next job, would train on them.

    Code and models are no data either. A channel is every key that begins with its address.
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html
    """
    folder = request.get("CheckpointConfig", {}).get("S3Uri", "")
    output = request["OutputDataConfig"]["S3OutputPath"].rstrip("/")
    own = f"{output}/{request['TrainingJobName']}/"
    for channel in request.get("InputDataConfig", []):
        data = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        name = channel["ChannelName"]
        if name not in job.channels or not data:
            continue
        prefix = data if aws.s3_location(data)[1] else f"{data.rstrip('/')}/"
        if folder and (aws.within(data, folder) or aws.within(folder, data)):
            problem = f"{folder} overlaps with channels.{name}, so checkpoints would become data"
            yield error("checkpoint_s3", problem, "use a folder next to the data")
        elif own.startswith(prefix):
            problem = f"{data} also matches {own}, so code and models would become data"
            yield error(f"channels.{name}", problem, "end it with the slash of a folder of data")
