"""The launcher against the instances: it runs on them, and uses every GPU that is billed."""

import re
from collections.abc import Iterator
from typing import Any

from smlightning.cluster.location import (
    SMDDP_INSTANCES,
    ClusterError,
    check_shard_size,
    runs_smddp,
)
from smlightning_sagemaker.findings import Finding, error, hint_for_unknown_name, skipped, warning
from smlightning_sagemaker.job import aws, images, instances, launchers
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import sent
from smlightning_sagemaker.project import Project

NOT_NVIDIA_ON_X86 = ("trn", "p6e-gb200")  # families of Trainium, and of GPUs next to ARM
TORCHRUN = 'set distribution = "torch_distributed"'
# A command that starts the toolkit, or a program that a channel brings, as the SDK's v3 does.
TOOLKIT = re.compile(r"(^|[\s;&|])train([\s;&|]|$)|sagemaker_training|/opt/ml/input/data/")
VOLUME_GB: int = Job.model_fields["volume_gb"].default


def instance(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """AWS's training images run on the instance; its number of GPUs is known.

    https://aws.github.io/deep-learning-containers/reference/available_images/
    """
    kind = job.instance_type
    if without_image(kind) and images.profile(job):
        problem = f"AWS's training images do not run on {kind}"
        yield error("instance_type", problem, "use a p or g instance (NVIDIA, x86)")
    elif kind not in aws.shape("TrainingInstanceType").enum:
        hint = hint_for_unknown_name(kind, aws.shape("TrainingInstanceType").enum)
        yield warning("instance_type", f"botocore knows no {kind} for training", hint)
    elif instances.gpus(kind) is None:
        problem = f"the number of GPUs of {kind} is not known here"
        yield skipped("instance_type", problem, "torchrun uses all it finds")


def without_image(instance_type: str) -> bool:
    """Whether AWS has no training image of PyTorch that runs on the instance."""
    return instances.family(instance_type).startswith(NOT_NVIDIA_ON_X86)


def smddp(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """SMDDP runs on p4d and p4de, and has one process group.

    https://docs.aws.amazon.com/sagemaker/latest/dg/distributed-data-parallel-support.html
    """
    if launchers.launcher(job) != "smddp":
        return
    if not runs_smddp(job.instance_type):
        problem = f"SMDDP does not run on {job.instance_type}"
        hint = f"{TORCHRUN}, or instance_type to one of {', '.join(SMDDP_INSTANCES)}"
        yield error("distribution", problem, hint)
    elif job.hyperparameters.get("strategy") == "fsdp":
        problem = "--strategy fsdp makes its own process groups, which SMDDP does not support"
        yield error("distribution", problem, TORCHRUN)


def processes(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The launcher starts a process for each GPU of each host, and all of them train together.

    Source: sagemaker-training 5.1.1, entry_point.py and smdataparallel.py.
    """
    kind, hosts, gpus = job.instance_type, job.instance_count, instances.gpus(job.instance_type)
    launcher = launchers.launcher(job)
    if launcher == "pytorchddp" and gpus == 0:
        problem = f"pytorchddp needs GPUs and {kind} has none"
        yield error("distribution", problem, TORCHRUN)
    elif launcher == "none" and hosts > 1:
        problem = f'with "none", each of {hosts} hosts would train by itself, as rank 0'
        yield error("distribution", problem, TORCHRUN)
    elif launcher == "none" and gpus and gpus > 1:
        problem = f'"none" starts one process: {gpus - 1} of {gpus} billed GPUs would idle'
        yield error("distribution", problem, TORCHRUN)


def shards(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """``--shard_size`` divides the number of processes."""
    size, gpus = job.hyperparameters.get("shard_size", 0), instances.gpus(job.instance_type)
    is_sharded = job.hyperparameters.get("strategy") == "fsdp" and isinstance(size, int)
    if not is_sharded or gpus is None or launchers.launcher(job) == "none":
        return
    count = job.instance_count * max(gpus, 1)
    if count == 1 or size < 0:  # one process shards nothing; options.py rejects the other
        return
    try:
        check_shard_size(size, count)
    except ClusterError as failure:
        yield error("hyperparameters.shard_size", failure.problem, failure.hint)


def precision(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """The GPUs compute in bfloat16: those before Ampere emulate it.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities
    """
    kind = job.instance_type
    if job.hyperparameters.get("precision") == "bf16-mixed" and not instances.bf16(kind):
        problem = f"the GPUs of {kind} have no bfloat16, and emulate it many times slower"
        yield warning("hyperparameters.precision", problem, 'set it to "auto", or to "16-mixed"')


def disk(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """Instances with disks of their own get no other one (API_ResourceConfig, VolumeSizeInGB)."""
    if job.volume_gb > VOLUME_GB and instances.disk(job.instance_type):
        problem = f"found {job.volume_gb}, and {job.instance_type} has only its own disk"
        hint = "check that the data fits on it (ec2/instance-types), and remove volume_gb"
        yield warning("volume_gb", problem, hint)


def volume_key(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """VolumeKmsKeyId is a key's ID or ARN, and no type with local disks has one.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html
    """
    key, name = (
        "request.ResourceConfig.VolumeKmsKeyId",
        request["ResourceConfig"].get("VolumeKmsKeyId", ""),
    )
    own = [each.instance_type for each in job.variants if instances.disk(each.instance_type)]
    if name and own:
        yield error(key, f"VolumeKmsKeyId is not for {own[0]}, which has its own disk", "remove it")
    elif "alias/" in name:
        problem = f"found {name}, expected the ID or ARN of a key: a volume's takes no alias"
        yield error(key, problem, "write the key's ARN (aws kms describe-key)")


def toolkit(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """SageMaker's toolkit starts train.py: the container's own command runs `train`, or a channel.

    AWS's images run it as the argument that SageMaker passes (API_AlgorithmSpecification).
    """
    algorithm = request["AlgorithmSpecification"]
    given = [name for name in ("ContainerEntrypoint", "ContainerArguments") if name in algorithm]
    command = " ".join(word for name in given for word in algorithm[name])
    is_known = images.profile(job) or images.aws_image(job.image)
    if given and is_known and not TOOLKIT.search(command):
        problem = "with it, SageMaker's toolkit starts neither pip nor train.py"
        hint = "end it with start_with_right_hostname.sh train, or remove it"
        yield error(f"request.AlgorithmSpecification.{given[0]}", problem, hint)


def tensorboard(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """SageMaker uploads a folder to which training writes (API_TensorBoardOutputConfig)."""
    config = request.get("TensorBoardOutputConfig")
    if config is None:
        return
    folder = str(config.get("LocalPath", "/opt/ml/output/tensorboard")).rstrip("/")
    if not any(folder in text for text in sent.texts(job, {}, project)):
        problem = f"nothing in src/ names {folder}, so that SageMaker would upload nothing"
        hint = f'write TensorBoard\'s files there, as by TensorBoardLogger("{folder}")'
        yield warning("request.TensorBoardOutputConfig", problem, hint)


def forwarded_stops(job: Job, request: dict[str, Any], project: Project) -> Iterator[Finding]:
    """``forward_stop`` starts a script that only AWS's images have (Dockerfile.cuda)."""
    is_known = images.profile(job) or images.aws_image(job.image)
    if job.forward_stop and not is_known:
        problem = (
            "it runs start_with_right_hostname.sh of AWS's images; in an image without this script "
            "the job ends at once with status 127"
        )
        hint = "set it to false, unless your image has the script"
        yield error("forward_stop", problem, hint)
