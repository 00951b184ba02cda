"""The CreateTrainingJob request that a rehearsal follows: the one that `launch` would send."""

import json
from typing import Any

from launch import request as requests
from launch.entry import FORWARDING
from launch.job import Job
from runtime.report import UserError

# Hyperparameters by which the toolkit knows its launcher, where the SDK writes no request: see `without_sdk`.
FLAGS: dict[str, dict[str, Any]] = {
    "none": {},
    "torch_distributed": {"sagemaker_torch_distributed_enabled": True},
    "pytorchddp": {"sagemaker_pytorch_ddp_enabled": True},
    "smddp": {
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    },
}


def make(job: Job) -> tuple[dict[str, Any], str]:
    """The request, and what makes it another one than would be sent, if anything.

    Raises:
        UserError: the job makes no valid request.
    """
    try:
        return requests.dry_run(job), ""
    except ModuleNotFoundError as error:
        return without_sdk(job), f"{error.name} is not installed, so the request is not the SDK's (make setup)"
    except ValueError as error:  # the SDK's, of a region or an image that it does not know
        raise UserError(f"job.toml makes no request: {error}; run python -m launch preflight --offline") from error


def without_sdk(job: Job) -> dict[str, Any]:
    """The parts of the request that a rehearsal uses, also for code that is not the job's."""
    flags = FLAGS[job.distribution]
    values = {
        **job.hyperparameters,
        **({**flags, "sagemaker_instance_type": job.instance_type} if flags else {}),
        "sagemaker_program": "train.py",
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": job.name,
        "sagemaker_region": job.region,
    }
    return {
        "HyperParameters": {name: json.dumps(value) for name, value in values.items()},
        "Environment": job.environment,
        "AlgorithmSpecification": {"ContainerEntrypoint": FORWARDING if job.forward_stop else []},
        "ResourceConfig": {"InstanceType": job.instance_type},
    }
