"""AWS's Deep Learning Containers for PyTorch: families, what each can start, and where they are."""

from dataclasses import dataclass
from datetime import date

from smlightning.cluster.location import SMDDP_IMAGE
from smlightning.errors import UserError
from smlightning.launch import instances, launchers
from smlightning.launch.job import Job


@dataclass(frozen=True)
class Profile:
    """A family of images. Their addresses are here since the SDK's own version lists lag."""

    name: str
    gpu: str  # repository:tag for GPU instances
    cpu: str  # for CPU instances; empty: there is none
    python: str
    torch: str
    cuda: tuple[int, int]
    launchers: tuple[str, ...]
    patched_until: date


# https://aws.github.io/deep-learning-containers/reference/available_images/, as of November 2026.
CURRENT = Profile(
    name="current",
    gpu="pytorch:2.13-cu133-amzn2023-sagemaker",
    cpu="pytorch:2.13-cpu-amzn2023-sagemaker",
    python="3.12",
    torch="2.13.0",
    cuda=(13, 3),
    launchers=("torch_distributed", "none"),
    patched_until=date(2027, 7, 20),
)
MPIRUN = Profile(  # the last one with mpi4py, and so with mpirun, on GPUs
    name="mpirun",
    gpu="pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker",
    cpu="",
    python="3.13",
    torch="2.10.0",
    cuda=(13, 0),
    launchers=("pytorchddp", "torch_distributed", "none"),
    patched_until=date(2027, 1, 21),
)
SMDDP = Profile(  # the last one with SMDDP (2.6.0)
    name="smddp",
    gpu=SMDDP_IMAGE,
    cpu="",
    python="3.11",
    torch="2.5.1",
    cuda=(12, 4),
    launchers=("smddp", "pytorchddp", "torch_distributed", "none"),
    patched_until=date(2025, 10, 29),
)
PROFILES = {each.name: each for each in (CURRENT, MPIRUN, SMDDP)}
IMAGE_OF_LAUNCHER = {"smddp": SMDDP, "pytorchddp": MPIRUN}  # any other launcher: the current one

# The account that holds the images, by region (SDK v2.257.7, image_uri_config/pytorch.json).
_MOST_REGIONS = """
ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-1 ap-southeast-2 ca-central-1 eu-central-1
eu-north-1 eu-west-1 eu-west-2 eu-west-3 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2
""".split()  # noqa: SIM905
REGISTRIES = {
    **dict.fromkeys(_MOST_REGIONS, "763104351884"),
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}


def profile(job: Job) -> Profile | None:
    """The job's family; None where `image` is a URI, of whose image nothing is known here."""
    if job.image != "auto":
        return PROFILES.get(job.image)
    return IMAGE_OF_LAUNCHER.get(launchers.launcher(job), CURRENT)


def image_uri(job: Job) -> str:
    """The image's address in the job's region.

    Raises:
        UserError: it is not known where AWS keeps its images for that region.
    """
    family = profile(job)
    if family is None:
        return job.image
    account = REGISTRIES.get(job.region)
    if account is None:
        raise UserError(
            f"where AWS keeps its images for {job.region} is not known here",
            "set image to the image's own URI",
        )
    suffix = "amazonaws.com.cn" if job.region.startswith("cn-") else "amazonaws.com"
    for_gpus = instances.gpus(job.instance_type) != 0
    return f"{account}.dkr.ecr.{job.region}.{suffix}/{family.gpu if for_gpus else family.cpu}"
