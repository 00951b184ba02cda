"""AWS's Deep Learning Containers for PyTorch: families, what each can start, and where they are."""

import re
from dataclasses import dataclass
from datetime import date

from smlightning.cluster.location import SMDDP_IMAGE
from smlightning.errors import UserError
from smlightning.launch import aws, launchers, resources
from smlightning.launch.job import Job


@dataclass(frozen=True)
class Profile:
    """A family of images. Their addresses are here since the SDK's own version lists lag."""

    name: str
    gpu: str  # repository:tag for GPU instances
    cpu: str  # for CPU instances; empty: there is none
    python: str
    torch: str
    cuda: tuple[int, int] | None  # None: an image for CPUs
    launchers: tuple[str, ...]
    patched_until: date | None  # None: not known here
    holds: tuple[str, ...] = ()  # packages beside torch that pip finds there, name==version

    @property
    def packages(self) -> dict[str, str]:
        """Package → version of what is known to be in the image, torch first."""
        return {"torch": self.torch, **dict(_pair(pin) for pin in self.holds)}


# docker/pytorch/2.13/cuda/uv.lock of github.com/aws/deep-learning-containers, read in November
# 2026: what a requirements.txt asks for in vain there, or what pip would wrongly replace.
_IN_2_13 = tuple(
    """
    torchvision==0.28.0 torchaudio==2.11.0 triton==3.7.1 deepspeed==0.19.2
    mlflow==3.15.1 mlflow-skinny==3.15.1 mlflow-tracing==3.15.1 sagemaker-mlflow==0.2.0
    nvidia-cublas==13.1.1.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cudnn-cu13==9.20.0.48 nvidia-cufft==12.0.0.61
    nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35 nvidia-cusolver==12.0.4.66
    nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.29.7
    nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5 nvidia-nvtx==13.0.85
    """.split()  # noqa: SIM905
)
# Of earlier images AWS publishes no lock file. torchvision and torchaudio are built for one torch
# each: these are the only versions that require it (their own metadata on PyPI).
_BESIDE_TORCH = {
    "2.5": ("torchvision==0.20.1", "torchaudio==2.5.1"),
    "2.6": ("torchvision==0.21.0", "torchaudio==2.6.0"),
    "2.7": ("torchvision==0.22.1", "torchaudio==2.7.1"),
    "2.8": ("torchvision==0.23.0", "torchaudio==2.8.0"),
    "2.9": ("torchvision==0.24.0", "torchaudio==2.9.0"),
    "2.10": ("torchvision==0.25.0", "torchaudio==2.10.0"),
    "2.11": ("torchvision==0.26.0", "torchaudio==2.11.0"),
    "2.12": ("torchvision==0.27.1", "torchaudio==2.11.0"),
    "2.13": ("torchvision==0.28.0", "torchaudio==2.11.0"),
}


def packages_with(torch: str) -> dict[str, str]:
    """Package → version of what AWS's images with this version of torch hold, torch first."""
    beside = _BESIDE_TORCH.get(".".join(torch.split(".")[:2]), ())
    return {"torch": torch, **dict(_pair(pin) for pin in beside)}


def _pair(pin: str) -> tuple[str, str]:
    name, _, version = pin.partition("==")
    return name, version


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
    holds=_IN_2_13,
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
    holds=_BESIDE_TORCH["2.10"],
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
    holds=_BESIDE_TORCH["2.5"],
)
PROFILES = {family.name: family for family in (CURRENT, MPIRUN, SMDDP)}
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
    """The job's family; None where `image` is a URI of whose image nothing is known here."""
    if job.image == "auto":
        return IMAGE_OF_LAUNCHER.get(launchers.launcher(job), CURRENT)
    if job.image in PROFILES:
        return PROFILES[job.image]
    image = aws_image(job.image)
    return image.profile if image else None


def image_uri(job: Job) -> str:
    """The image's address in the job's region.

    Raises:
        UserError: it is not known where AWS keeps its images for that region.
    """
    family = profile(job)
    if family is None or "/" in job.image:
        return job.image
    for_gpus = resources.gpus(job) != 0
    return f"{registry(job.region)}/{family.gpu if for_gpus else family.cpu}"


def registry(region: str) -> str:
    """The registry of AWS's images for a region.

    Raises:
        UserError: it is not known.
    """
    account = REGISTRIES.get(region)
    if account is None:
        raise UserError(
            f"where AWS keeps its images for {region} is not known here",
            "set image to the image's own URI",
        )
    return f"{account}.dkr.ecr.{region}.{aws.dns_suffix(region)}"


# AWS's images by their address: the tag says what is in them.

PUBLIC = "public.ecr.aws/deep-learning-containers"
ECR = re.compile(r"(\d{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.[a-z0-9.-]+/([^:@]+)(?::([^@]+))?")
VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?")
# Last day of patches, by torch (docs/src/data of github.com/aws/deep-learning-containers).
_PATCHED_UNTIL = {
    (2, 5): SMDDP.patched_until,
    (2, 6): date(2026, 1, 29),
    (2, 7): date(2026, 4, 23),
    (2, 8): date(2026, 8, 6),
    (2, 9): date(2026, 10, 15),
    (2, 10): MPIRUN.patched_until,
    (2, 11): date(2027, 4, 30),
    (2, 12): date(2027, 7, 2),
    (2, 13): CURRENT.patched_until,
}
# The SDK's lists end at 2.2 (fw_utils.SM_DATAPARALLEL_SUPPORTED_FRAMEWORK_VERSIONS), SMDDP's page
# of images at 2.3.0; the Dockerfiles of 2.4 and 2.5 still install it (2.5.0 and 2.6.0).
_NEWEST_WITH_SMDDP = (2, 5)
_OLDEST_WITH_TORCHRUN = (1, 13)  # TORCH_DISTRIBUTED_GPU_SUPPORTED_FRAMEWORK_VERSIONS


@dataclass(frozen=True)
class AwsImage:
    """One of AWS's own images, as its address describes it."""

    account: str  # of its registry; empty: the public one
    region: str  # of its registry; empty: the public one
    repository: str
    tag: str

    @property
    def torch(self) -> tuple[int, int] | None:
        """Major and minor version of torch; None where the tag begins with none."""
        version = VERSION.match(self.tag)
        return (int(version[1]), int(version[2])) if version else None

    @property
    def profile(self) -> Profile | None:
        """What is in it; None for other repositories than those of PyTorch for training."""
        if self.repository not in ("pytorch", "pytorch-training") or not self.torch:
            return None
        for known in PROFILES.values():
            if f"{self.repository}:{self.tag}" in (known.gpu, known.cpu):
                return known
        python = re.search(r"py3(\d+)", self.tag)
        cuda = re.search(r"cu(\d\d)(\d)", self.tag)
        return Profile(
            name=f"{self.repository}:{self.tag}",
            gpu=f"{self.repository}:{self.tag}",
            cpu="" if cuda else f"{self.repository}:{self.tag}",
            python=f"3.{python[1]}" if python else "3.12",  # from 2.11 on, whose tags have none
            torch=_full_version(self.tag),
            cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
            launchers=_launchers(self.repository, self.torch, bool(cuda)),
            patched_until=_PATCHED_UNTIL.get(self.torch),
            holds=_BESIDE_TORCH.get(".".join(map(str, self.torch)), ()),
        )


def _full_version(tag: str) -> str:
    """2.8.0 of 2.8.0-gpu-…, and of 2.8-gpu-…, as far as the tag says it."""
    version = str(VERSION.match(tag)[0])  # type: ignore[index]
    return version if version.count(".") == 2 else f"{version}.0"


def _launchers(repository: str, torch: tuple[int, int], for_gpus: bool) -> tuple[str, ...]:
    """Launchers that an image can start: mpirun needs mpi4py, which `pytorch` has not on GPUs."""
    available = ["none"]
    if torch >= _OLDEST_WITH_TORCHRUN:
        available.insert(0, "torch_distributed")
    if for_gpus and repository == "pytorch-training":
        available.insert(0, "pytorchddp")
        if torch <= _NEWEST_WITH_SMDDP:
            available.insert(0, "smddp")
    return tuple(available)


def aws_image(uri: str) -> AwsImage | None:
    """The image at an address, where it is one of AWS's own; None for others."""
    if uri.startswith(f"{PUBLIC}/"):
        repository, _, tag = uri.removeprefix(f"{PUBLIC}/").partition("@")[0].partition(":")
        return AwsImage("", "", repository, tag)
    address = ECR.fullmatch(uri.partition("@")[0])
    if not address or address[1] not in REGISTRIES.values():
        return None
    return AwsImage(address[1], address[2], address[3], address[4] or "")
