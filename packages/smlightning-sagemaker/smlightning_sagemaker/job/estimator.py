"""The one request as arguments of the SageMaker SDK's v2 estimator, for launch.ipynb.

Only this module needs the SDK. tests/tools/job/test_estimator.py proves that the estimator
sends the same request.
"""

import logging
import os
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import Job, leaves

# Parameter of the estimator → the member of CreateTrainingJob that it sets.
MEMBERS = {
    "instance_type": "ResourceConfig.InstanceType",
    "instance_count": "ResourceConfig.InstanceCount",
    "volume_size": "ResourceConfig.VolumeSizeInGB",
    "volume_kms_key": "ResourceConfig.VolumeKmsKeyId",
    "keep_alive_period_in_seconds": "ResourceConfig.KeepAlivePeriodInSeconds",
    "training_plan": "ResourceConfig.TrainingPlanArn",
    "max_run": "StoppingCondition.MaxRuntimeInSeconds",
    "max_wait": "StoppingCondition.MaxWaitTimeInSeconds",
    "use_spot_instances": "EnableManagedSpotTraining",
    "max_retry_attempts": "RetryStrategy.MaximumRetryAttempts",
    "checkpoint_s3_uri": "CheckpointConfig.S3Uri",
    "output_path": "OutputDataConfig.S3OutputPath",
    "output_kms_key": "OutputDataConfig.KmsKeyId",
    "subnets": "VpcConfig.Subnets",
    "security_group_ids": "VpcConfig.SecurityGroupIds",
    "encrypt_inter_container_traffic": "EnableInterContainerTrafficEncryption",
    "enable_network_isolation": "EnableNetworkIsolation",
    "environment": "Environment",
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
# Members that the notebook passes separately, or that the estimator sets itself.
WRITTEN_OUT = (
    "TrainingJobName",
    "RoleArn",
    "HyperParameters",
    "InputDataConfig",
    "AlgorithmSpecification.TrainingImage",
    "AlgorithmSpecification.MetricDefinitions",
)


def session(job: Job) -> Any:
    """A session of the SDK in the job's region, which reports nothing of its use to AWS.

    The request is complete without the defaults of the SDK's configuration file.
    """
    os.environ.setdefault("SAGEMAKER_SUPPRESS_V2_WARNING", "1")  # v2 is chosen knowingly
    logging.getLogger("sagemaker.config").disabled = True  # it prints to standard output
    import boto3
    import sagemaker

    logging.getLogger("sagemaker").setLevel(logging.CRITICAL)
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)  # a line for each client
    own = boto3.Session(profile_name=aws.session()._session.profile, region_name=job.region)
    own._session._credentials = aws.session().get_credentials()  # one code of MFA serves both
    modules = {"TelemetryOptOut": True}
    configuration = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": modules}}}
    return sagemaker.Session(
        boto_session=own, sagemaker_config=configuration, default_bucket=job.bucket or None
    )


def options(request: dict[str, Any]) -> dict[str, Any]:
    """The estimator's arguments beyond code and image, as the request has them.

    Raises:
        UserError: [request] has a member for which the estimator has no parameter.
    """
    tables = {name: request[name] for name in ("HyperParameters", "Environment") if name in request}
    others = {name: value for name, value in request.items() if name not in tables}
    members: dict[str, Any] = dict(leaves(others)) | tables
    given: dict[str, Any] = {
        "debugger_hook_config": False,  # a hook in every step, whose output nobody reads
    }
    for parameter, member in MEMBERS.items():
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
    given["code_location"] = str(given["output_path"]).rstrip("/")
    return given


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
