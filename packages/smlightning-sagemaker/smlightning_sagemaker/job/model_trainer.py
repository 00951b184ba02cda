"""The one request as a ModelTrainer of the SageMaker SDK's version 3.

The trainer gets no SourceCode: the toolkit of the image starts training, as it does for `submit`
and for the estimator of version 2, so SMDDP works too. With SourceCode, version 3 would start
training by scripts of its own, which have no launcher for SMDDP.

Only this module needs version 3 (`pip install sagemaker-train`). Both versions have the import name
`sagemaker`, so each needs its own environment. tests/tools/test_model_trainer.py compares
what the trainer sends with the request.
"""

import os
from typing import Any

from smlightning.errors import UserError
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import Job

# Members of CreateTrainingJob in v3's names → the parameter of ModelTrainer.
PARAMETERS = {
    "role_arn": "role",
    "hyper_parameters": "hyperparameters",
    "environment": "environment",
    "input_data_config": "input_data_config",
    "output_data_config": "output_data_config",
    "checkpoint_config": "checkpoint_config",
    "stopping_condition": "stopping_condition",
    "tags": "tags",
}
OF_ALGORITHM = ("training_image", "training_input_mode", "training_image_config")
NETWORK_SWITCHES = ("enable_network_isolation", "enable_inter_container_traffic_encryption")
# The other members that ModelTrainer can send: each has a method, with_… .
METHODS = (
    "tensor_board_output_config",
    "retry_strategy",
    "infra_check_config",
    "session_chaining_config",
    "remote_debug_config",
)
NO_PROFILER = {"DisableProfiler": True}  # ModelTrainer has no parameter for it


def model_trainer(job: Job, request: dict[str, Any]) -> Any:
    """A ModelTrainer whose `train()` sends ``request`` under a name that the SDK chooses.

    The name is the job's and another time: ModelTrainer always chooses it. Upload the code before
    (`sending.upload`).

    Args:
        job: the content of job.toml.
        request: CreateTrainingJob, from `request.training_request`.

    Raises:
        UserError: the request has a member that ModelTrainer cannot send, or this environment does
            not have version 3 of the SDK.
    """
    # The SDK would simulate its own list of actions on every resource. The role of
    # `smlightning account` has them on the job's folders alone; preflight simulates this job's.
    os.environ.setdefault("SAGEMAKER_VALIDATE_ROLE", "false")
    try:
        from sagemaker.core import shapes
        from sagemaker.core.utils.code_injection.codec import transform
        from sagemaker.train import ModelTrainer
        from sagemaker.train.configs import Compute, Networking
    except ImportError as failure:
        raise UserError(
            f"this environment has no version 3 of the SageMaker SDK ({failure})",
            "install sagemaker-train into an environment of its own: docs/how_to.md",
        ) from None
    members = dict(request)
    if members.get("ProfilerConfig") == NO_PROFILER:
        del members["ProfilerConfig"]
    members = transform(members, "CreateTrainingJobRequest")
    del members["training_job_name"]
    algorithm = members.pop("algorithm_specification")
    given = {name: algorithm.pop(name) for name in OF_ALGORITHM if name in algorithm}
    metrics = [shapes.MetricDefinition(**each) for each in algorithm.pop("metric_definitions", [])]
    given |= {PARAMETERS[name]: members.pop(name) for name in PARAMETERS if name in members}
    hosts = {"volume_size_in_gb": None, **members.pop("resource_config")}  # else 30: v3's default
    spot = members.pop("enable_managed_spot_training", None)
    switches = {name: members.pop(name) for name in NETWORK_SWITCHES if name in members}
    network = Networking(**members.pop("vpc_config", {}), **switches)
    later = {name: members.pop(name) for name in METHODS if name in members}
    if unknown := sorted([*algorithm, *members]):
        raise UserError(
            f"ModelTrainer has no parameter for {', '.join(unknown)}",
            "send the job by make launch, which sends every member",
        )
    trainer = ModelTrainer(
        sagemaker_session=session(job),
        base_job_name=job.name,
        compute=Compute(**hosts, enable_managed_spot_training=spot),
        networking=network,
        **given,
    )
    if metrics:
        trainer.with_metric_definitions(metrics)
    for name, value in later.items():
        kind = getattr(shapes, "".join(word.capitalize() for word in name.split("_")))
        getattr(trainer, f"with_{name.replace('tensor_board', 'tensorboard')}")(kind(**value))
    return trainer


def session(job: Job) -> Any:
    """A session of SDK v3 in the job's region that reports nothing of its use to AWS."""
    from sagemaker.core.helper.session_helper import Session

    return Session(**aws.of_an_sdk(job.region, job.bucket))
