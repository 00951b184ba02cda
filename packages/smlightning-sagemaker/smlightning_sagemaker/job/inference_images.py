"""AWS's inference image with Ray Serve, in which a deployed model answers, and its hosts."""

from smlightning_sagemaker.job import instances

# docs/ray and docs/src/data/ray of github.com/aws/deep-learning-containers, August 2026: release
# 1.4, with Ray 2.57.0, Python 3.13, torch 2.10.0 and CUDA 12.9. AWS patches what the tag v1 names.
GPU = "ray:serve-ml-sagemaker-cuda-v1"
CPU = "ray:serve-ml-sagemaker-cpu-v1"
# AWS's documentation of the image: GPUs need a host with a newer driver than the default's.
AMI = "al2-ami-sagemaker-inference-gpu-3-1"  # NVIDIA driver 550, CUDA 12.4
BLACKWELL_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"  # these GPUs need driver 570 or newer
_BLACKWELL = ("p6", "g7")


def ami(instance: str) -> str:
    """The InferenceAmiVersion that the image needs on an instance; empty for AWS's default."""
    if instances.gpus(instance) == 0:
        return ""
    return BLACKWELL_AMI if instances.family(instance).startswith(_BLACKWELL) else AMI
