"""Values for the estimator of SDK v2 in launch.ipynb that job.toml does not have.

Only this module needs the SDK. tests/tools/job/test_estimator.py proves that the notebook's
estimator sends the one request.
"""

import logging
import os
from types import SimpleNamespace
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws, launchers
from smlightning_sagemaker.job import request as requests
from smlightning_sagemaker.job.job import Job, leaves

# Parameter of the estimator → the member of CreateTrainingJob that it sets.
REST = {
    "volume_kms_key": "ResourceConfig.VolumeKmsKeyId",
    "training_plan": "ResourceConfig.TrainingPlanArn",
    "max_retry_attempts": "RetryStrategy.MaximumRetryAttempts",
    "output_kms_key": "OutputDataConfig.KmsKeyId",
    "subnets": "VpcConfig.Subnets",
    "security_group_ids": "VpcConfig.SecurityGroupIds",
    "encrypt_inter_container_traffic": "EnableInterContainerTrafficEncryption",
    "enable_network_isolation": "EnableNetworkIsolation",
    "tags": "Tags",
    "input_mode": "AlgorithmSpecification.TrainingInputMode",
    "container_entry_point": "AlgorithmSpecification.ContainerEntrypoint",
    "container_arguments": "AlgorithmSpecification.ContainerArguments",
    "enable_sagemaker_metrics": "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
    "training_repository_access_mode": (
        "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAccessMode"
    ),
    "enable_remote_debug": "RemoteDebugConfig.EnableRemoteDebug",
    "enable_session_tag_chaining": "SessionChainingConfig.EnableSessionTagChaining",
    "enable_infra_check": "InfraCheckConfig.EnableInfraCheck",
    "disable_profiler": "ProfilerConfig.DisableProfiler",
}
# Members whose arguments the notebook writes out.
WRITTEN_OUT = """
    TrainingJobName RoleArn HyperParameters InputDataConfig Environment EnableManagedSpotTraining
    AlgorithmSpecification.TrainingImage AlgorithmSpecification.MetricDefinitions
    ResourceConfig.InstanceType ResourceConfig.InstanceCount ResourceConfig.VolumeSizeInGB
    ResourceConfig.KeepAlivePeriodInSeconds StoppingCondition.MaxRuntimeInSeconds
    StoppingCondition.MaxWaitTimeInSeconds CheckpointConfig.S3Uri OutputDataConfig.S3OutputPath
""".split()  # noqa: SIM905


def resolve(job: Job, request: dict[str, Any]) -> SimpleNamespace:
    """The estimator's arguments that the account, the launcher and [request] decide, by name.

    `hyperparameters` have the launcher's flags, too: the SDK has no `distribution` for mpirun.
    `rest` has tags, network, encryption, forward_stop, and members of [request].

    Args:
        job: that the request was built from.
        request: CreateTrainingJob.

    Raises:
        UserError: [request] has a member for which the estimator has no parameter.
    """
    algorithm = request["AlgorithmSpecification"]
    output_path = request["OutputDataConfig"]["S3OutputPath"]
    return SimpleNamespace(
        role=request["RoleArn"],
        image_uri=algorithm["TrainingImage"],
        distribution=distribution(job),
        hyperparameters=requests.hyperparameters(job),
        environment=request.get("Environment"),
        metric_definitions=algorithm["MetricDefinitions"],
        checkpoint_s3_uri=request.get("CheckpointConfig", {}).get("S3Uri"),
        output_path=output_path,
        code_location=output_path.rstrip("/"),
        rest=rest(request),
    )


def distribution(job: Job) -> dict[str, Any] | None:
    """The launcher as the SDK takes it; None for one process, and for plain mpirun.

    The SDK rewrites {"pytorchddp": …} to SMDDP, which the image lacks, and rejects p5 for it.
    """
    options = launchers.flags(job).get("sagemaker_distributed_dataparallel_custom_mpi_options")
    smddp: dict[str, Any] = {"dataparallel": {"enabled": True, "custom_mpi_options": options}}
    known: dict[str, dict[str, Any]] = {
        "torch_distributed": {"torch_distributed": {"enabled": True}},
        "smddp": {"smdistributed": smddp},
    }
    return known.get(launchers.launcher(job))


def rest(request: dict[str, Any]) -> dict[str, Any]:
    """The estimator's arguments that the notebook does not write out; raises UserError."""
    others = {name: value for name, value in request.items() if name not in WRITTEN_OUT}
    members: dict[str, Any] = dict(leaves(others))
    given: dict[str, Any] = {
        "debugger_hook_config": False,  # a hook in every step, whose output nobody reads
    }
    for parameter, member in REST.items():
        if member in members:
            given[parameter] = members.pop(member)
    if members.pop("OutputDataConfig.CompressionType", "") == "NONE":
        given["disable_output_compression"] = True
    unknown = sorted(member for member in members if member not in WRITTEN_OUT)
    if unknown:
        raise UserError(
            f"the SDK's estimator has no parameter for {', '.join(unknown)}",
            "send the job by make launch, which supports them all",
        )
    return given


def silence_sdk() -> None:
    """Print nothing where the SDK is imported, and no line for each of its clients."""
    os.environ.setdefault("SAGEMAKER_SUPPRESS_V2_WARNING", "1")  # v2 is chosen knowingly
    logging.getLogger("sagemaker.config").disabled = True  # it prints to standard output
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)


def session(job: Job) -> Any:
    """A session of the SDK in the job's region, which reports nothing of its use to AWS.

    The request is complete without the defaults of the SDK's configuration file.
    """
    import boto3
    import sagemaker

    logging.getLogger("sagemaker").setLevel(logging.CRITICAL)
    own = boto3.Session(profile_name=aws.session()._session.profile, region_name=job.region)
    own._session._credentials = aws.session().get_credentials()  # one code of MFA serves both
    modules = {"TelemetryOptOut": True}
    configuration = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": modules}}}
    return sagemaker.Session(
        boto_session=own, sagemaker_config=configuration, default_bucket=job.bucket or None
    )


def inputs(job: Job) -> dict[str, Any] | None:
    """The argument of `fit`: for each channel its address, or the SDK's object for a table.

    Raises:
        UserError: a channel has a member for which the SDK has no parameter.
    """
    from sagemaker.inputs import FileSystemInput, TrainingInput

    channels: dict[str, Any] = {}
    for name, given in job.channels.items():
        if isinstance(given, str):
            channels[name] = given
            continue
        kind = FileSystemInput if "file_system_id" in given else TrainingInput
        try:
            channels[name] = kind(**given)
        except TypeError as failure:
            raise UserError(
                f"channels.{name}: the SDK's {kind.__name__} does not take it ({failure})",
                "send the job by make launch",
            ) from None
    return channels or None
