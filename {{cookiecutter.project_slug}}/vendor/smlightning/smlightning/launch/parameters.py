"""Parameters of the SageMaker SDK's v2 estimator, sagemaker.pytorch.PyTorch, and their members.

launch.ipynb passes them, and whoever comes from an estimator, or from a job.toml that had its
parameters, is told by them what to write today.
"""

# The member of CreateTrainingJob that a parameter sets.
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
# Parameters that set no single member, or one that is computed: what to do in place of them.
CURES = {
    "image_uri": "set image",
    "framework_version": "set image",
    "py_version": "set image",
    "base_job_name": "set name",
    "sagemaker_session": "set region",
    "entry_point": "remove it: a job runs src/train.py",
    "source_dir": "remove it: a job's code is src/",
    "metric_definitions": "set METRICS of src/options.py",
    "code_location": "remove it: code goes below OutputDataConfig.S3OutputPath",
}
