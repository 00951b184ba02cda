"""AWS's images that a model answers in: which, for what, on which host, and until when patched."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

from smlightning.launch import images, instances


@dataclass(frozen=True)
class Server:
    """A family of inference images.

    Attributes:
        gpu: repository:tag for hosts with GPUs.
        cpu: repository:tag for others.
        patched_until: last day of AWS's patches; None where AWS names none.
    """

    gpu: str
    cpu: str
    patched_until: date | None


# docs/ray and docs/src/data/ray of github.com/aws/deep-learning-containers, August 2026: release
# 1.4, with Ray 2.57.0, Python 3.13, torch 2.10.0 and CUDA 12.9. AWS patches what the tag v1 names,
# and names no last day.
RAY = Server("ray:serve-ml-sagemaker-cuda-v1", "ray:serve-ml-sagemaker-cpu-v1", None)
# The newest one with SageMaker's own toolkit (docs/src/data/pytorch-inference there: eop). Ray's
# entry point waits for 15 s and more before it answers, and starts several processes that share
# /dev/shm: not for a serverless endpoint. For a batch transform AWS has no host with the driver
# that Ray's image needs on GPUs (TransformAmiVersion ends at NVIDIA's 535).
TOOLKIT = Server(
    "pytorch-inference:2.6.0-gpu-py312", "pytorch-inference:2.6.0-cpu-py312", date(2026, 6, 30)
)

# AWS's documentation of the image for Ray: GPUs need a host with a newer driver than the default's.
AMI = "al2-ami-sagemaker-inference-gpu-3-1"  # NVIDIA driver 550, CUDA 12.4
BLACKWELL_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"  # these GPUs need driver 570 or newer
_BLACKWELL = ("p6", "g7")


def server(uri: str, *, on_instances: bool) -> Server:
    """Whose layout a deployment's archive has, from the image that is asked for."""
    if uri:
        repository = uri.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return RAY if repository == "ray" else TOOLKIT
    return RAY if on_instances else TOOLKIT


def ami(wanted: Server, instance: str) -> str:
    """The InferenceAmiVersion that an endpoint's hosts need; empty for AWS's default."""
    if wanted is not RAY or instances.gpus(instance) == 0:
        return ""
    return BLACKWELL_AMI if instances.family(instance).startswith(_BLACKWELL) else AMI


def warning(uri: str) -> str:
    """That AWS does not patch an image any more, and what to do; empty where it does."""
    image = images.aws_image(uri)
    if not image or image.repository != "pytorch-inference" or not image.torch:
        return ""
    until = TOOLKIT.patched_until
    if image.torch > (2, 6) or until is None or datetime.now(UTC).date() <= until:
        return ""
    name = f"{image.repository}:{image.tag}"
    return (
        f"AWS patches {name} no more since {until:%Y-%m-%d} or earlier; deploy on --instance "
        "without --image, where AWS's image with Ray Serve answers"
    )
