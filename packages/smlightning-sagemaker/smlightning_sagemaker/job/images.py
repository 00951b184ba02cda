"""AWS's Deep Learning Containers for PyTorch: families, what each can start, and where they are."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from smlightning.cluster.location import SHARDING_NEEDS
from smlightning.errors import UserError
from smlightning_sagemaker.job import aws, instances, launchers
from smlightning_sagemaker.job.job import Job

Version = tuple[int, int]  # major and minor version of torch


@dataclass(frozen=True)
class Release:
    """The content of AWS's training images with one minor version of torch.

    Sources, as of August 2026: docs/src/data of github.com/aws/deep-learning-containers for Python
    and the last day of patches; docker/pytorch/*/uv.lock for the toolkits from 2.11 on. Earlier
    Dockerfiles pin no toolkit (2.5 and 2.6: sagemaker-training>=5.0.0): theirs are the newest that
    PyPI had on the day of the Dockerfile's last change, which for 2.5 was 2025-08-04. torchvision
    and torchaudio are built for one torch each (their metadata on PyPI).
    """

    torch: str
    python: str
    patched_until: date
    toolkit: str  # version of sagemaker-training
    pytorch_toolkit: str  # version of sagemaker-pytorch-training
    torchvision: str
    torchaudio: str


RELEASES: dict[Version, Release] = {
    (2, 5): Release("2.5.1", "3.11", date(2025, 10, 29), "5.0.0", "2.9.0", "0.20.1", "2.5.1"),
    (2, 6): Release("2.6.0", "3.12", date(2026, 1, 29), "5.1.1", "3.0.0", "0.21.0", "2.6.0"),
    (2, 7): Release("2.7.1", "3.12", date(2026, 4, 23), "5.1.1", "3.0.0", "0.22.1", "2.7.1"),
    (2, 8): Release("2.8.0", "3.12", date(2026, 8, 6), "5.1.1", "3.0.0", "0.23.0", "2.8.0"),
    (2, 9): Release("2.9.0", "3.12", date(2026, 10, 15), "5.1.1", "3.0.0", "0.24.0", "2.9.0"),
    (2, 10): Release("2.10.0", "3.13", date(2027, 1, 21), "5.1.1", "3.0.0", "0.25.0", "2.10.0"),
    (2, 11): Release("2.11.0", "3.12", date(2027, 4, 30), "5.1.1", "3.0.0", "0.26.0", "2.11.0"),
    (2, 12): Release("2.12.1", "3.12", date(2027, 7, 2), "5.1.1", "3.0.0", "0.27.1", "2.11.0"),
    (2, 13): Release("2.13.0", "3.12", date(2027, 7, 20), "5.1.1", "3.0.0", "0.28.0", "2.11.0"),
}


@dataclass(frozen=True)
class Defect:
    """A known fault of images with torch from ``since`` to before ``before``.

    Attributes:
        name: under which others find it.
        does: what happens, as the end of a sentence about the image.
        so: what follows from it for a job.
        before: the first torch without it.
        since: the first torch with it.
        rebuilt: from this day on the same tags hold an image without it; None: they never will.
        security: whether files from others can do harm through it.
    """

    name: str
    does: str
    so: str
    before: Version
    since: Version = (0, 0)
    rebuilt: date | None = None
    security: bool = False


_TRUST_NO_FILE = (
    "load only your own checkpoints and models in it, and let only your team write to checkpoint_s3"
)
DEFECTS = (
    # https://github.com/pytorch/pytorch/security/advisories/GHSA-53q9-r3pm-6pq6
    Defect(
        name="CVE-2025-32434",
        does="lets a malicious file execute code in torch.load, even with weights_only=True",
        so=_TRUST_NO_FILE,
        before=(2, 6),
        security=True,
    ),
    # https://github.com/pytorch/pytorch/security/advisories/GHSA-63cw-57p8-fm3p
    Defect(
        name="CVE-2026-24747",
        does="lets a malicious file corrupt memory in torch.load",
        so=_TRUST_NO_FILE,
        before=(2, 10),
        security=True,
    ),
    # https://github.com/aws/deep-learning-containers/pull/6668
    Defect(
        name="aws-ofi-nccl 1.18.0",
        does="hangs in large broadcasts between hosts over EFA",
        so="use the tag without a digest or a build's number",
        since=(2, 11),
        before=(2, 13),
        rebuilt=date(2026, 8, 27),
    ),
)


@dataclass(frozen=True)
class Limit:
    """Options of train.py that torch cannot run before a version, on several processes.

    Attributes:
        options: their values; all of them together are the limit.
        named: those of them that a job sets, in a sentence about it.
        why: what torch lacks, as the end of a sentence about it.
        before: the first torch that runs them.
    """

    options: Mapping[str, Any]
    named: tuple[str, ...]
    why: str
    before: Version


LIMITS = (
    # https://github.com/pytorch/pytorch/blob/v2.5.1/torch/distributed/fsdp/__init__.py
    Limit(
        options={"strategy": "fsdp"},
        named=("strategy",),
        why="has no torch.distributed.fsdp.FSDPModule",
        before=SHARDING_NEEDS,
    ),
    # https://github.com/pytorch/pytorch/blob/v2.5.1/torch/_dynamo/backends/distributed.py
    Limit(
        options={"strategy": "ddp", "compile": True, "gradient_checkpointing": True},
        named=("compile", "gradient_checkpointing"),
        why="cannot compile a DDP model with checkpointed blocks (DDPOptimizer)",
        before=(2, 6),
    ),
)


@dataclass(frozen=True)
class Profile:
    """A family of images. Their addresses are here since the SDK's own version lists lag."""

    name: str
    gpu: str  # repository:tag for GPU instances
    cpu: str  # for CPU instances; empty: AWS has no such image
    python: str
    torch: str
    cuda: tuple[int, int] | None  # None: an image for CPUs
    launchers: tuple[str, ...]
    patched_until: date | None  # None: not known here
    toolkit: str | None = None  # version of sagemaker-training; None: not known here
    pytorch_toolkit: str | None = None  # of sagemaker-pytorch-training
    holds: Mapping[str, str] = field(default_factory=dict)  # package → version, next to torch

    @property
    def packages(self) -> dict[str, str]:
        """Package → version of what is known to be in the image, torch first."""
        return {"torch": self.torch, **self.holds}

    @property
    def version(self) -> Version:
        """Major and minor version of its torch."""
        major, minor = self.torch.split(".")[:2]
        return int(major), int(minor)

    def defects(self, today: date, *, fixed_build: bool = False) -> Iterator[Defect]:
        """Known defects of the image.

        Args:
            today: an image that AWS has rebuilt has no defect from that day on.
            fixed_build: the address is that of one build, which may be older than that.
        """
        for defect in DEFECTS:
            rebuilt = defect.rebuilt and today >= defect.rebuilt and not fixed_build
            if defect.since <= self.version < defect.before and not rebuilt:
                yield defect

    def limits(self, options: Mapping[str, Any]) -> Iterator[Limit]:
        """The limits of its torch that these options of train.py exceed."""
        for limit in LIMITS:
            asked = all(options.get(name) == value for name, value in limit.options.items())
            if asked and self.version < limit.before:
                yield limit


# docker/pytorch/2.13/cuda/uv.lock of github.com/aws/deep-learning-containers, read in November
# 2026: what a requirements.txt asks for in vain there, or what pip would wrongly replace. Of images
# before 2.11 AWS publishes no lock file.
_IN_2_13 = dict(
    pin.split("==")
    for pin in """
    triton==3.7.1 deepspeed==0.19.2
    mlflow==3.15.1 mlflow-skinny==3.15.1 mlflow-tracing==3.15.1 sagemaker-mlflow==0.2.0
    nvidia-cublas==13.1.1.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cudnn-cu13==9.20.0.48 nvidia-cufft==12.0.0.61
    nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35 nvidia-cusolver==12.0.4.66
    nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.29.7
    nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5 nvidia-nvtx==13.0.85
    """.split()  # noqa: SIM905
)


def _next_to_torch(release: Release | None) -> dict[str, str]:
    """The packages that are built for one torch each."""
    if release is None:
        return {}
    return {"torchvision": release.torchvision, "torchaudio": release.torchaudio}


def _profile(
    name: str,
    version: Version,
    *,
    gpu: str,
    cpu: str = "",
    cuda: tuple[int, int],
    launchers: tuple[str, ...],
    holds: Mapping[str, str] | None = None,
) -> Profile:
    """A profile of this project: tags and launchers here, the rest of its release."""
    release = RELEASES[version]
    return Profile(
        name=name,
        gpu=gpu,
        cpu=cpu,
        python=release.python,
        torch=release.torch,
        cuda=cuda,
        launchers=launchers,
        patched_until=release.patched_until,
        toolkit=release.toolkit,
        pytorch_toolkit=release.pytorch_toolkit,
        holds={**_next_to_torch(release), **(holds or {})},
    )


# https://aws.github.io/deep-learning-containers/reference/available_images/, as of November 2026.
CURRENT = _profile(
    "current",
    (2, 13),
    gpu="pytorch:2.13-cu133-amzn2023-sagemaker",
    cpu="pytorch:2.13-cpu-amzn2023-sagemaker",
    cuda=(13, 3),
    launchers=("torch_distributed", "none"),
    holds=_IN_2_13,
)
MPIRUN = _profile(  # the last one with mpi4py, and so with mpirun, on GPUs
    "mpirun",
    (2, 10),
    gpu="pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker",
    cuda=(13, 0),
    launchers=("pytorchddp", "torch_distributed", "none"),
)
SMDDP = _profile(  # the last one with SMDDP (2.6.0)
    "smddp",
    (2, 5),
    gpu="pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker",
    cuda=(12, 4),
    launchers=("smddp", "pytorchddp", "torch_distributed", "none"),
)
PROFILES = {family.name: family for family in (CURRENT, MPIRUN, SMDDP)}
IMAGE_OF_LAUNCHER = {"smddp": SMDDP, "pytorchddp": MPIRUN}  # any other launcher: the current one

# Instance types for which the toolkit sets FI_PROVIDER=efa under torchrun, each with the version
# from which on it does (SM_EFA_NCCL_INSTANCES of sagemaker-training, read in 4.8.1, 4.9.0 and 5.0.0
# to 5.1.4; p5e since sagemaker-training-toolkit#241). Under mpirun it does so for every type
# (smdataparallel.py).
EFA_SET_SINCE = {
    "ml.g4dn.8xlarge": (4, 8, 1),
    "ml.g4dn.12xlarge": (4, 8, 1),
    "ml.g5.48xlarge": (4, 8, 1),
    "ml.p3dn.24xlarge": (4, 8, 1),
    "ml.p4d.24xlarge": (4, 8, 1),
    "ml.p4de.24xlarge": (4, 8, 1),
    "ml.p5.48xlarge": (4, 8, 1),
    "ml.p5e.48xlarge": (5, 1, 2),
}
# The request sets these where the toolkit does not. FI_EFA_USE_DEVICE_RDMA is needed before
# libfabric 1.18 only, and these images have newer ones (EFA installer 1.36.0 and later);
# RDMAV_FORK_SAFE, which the toolkit sets, AWS advises against (awslabs/awsome-distributed-ai,
# efa-cheatsheet.md).
EFA_VARIABLES = {"FI_PROVIDER": "efa"}


def efa_variables(job: Job) -> dict[str, str]:
    """Variables without which NCCL may take TCP sockets between hosts that have EFA.

    Empty where the image's toolkit sets them, or is not known here.
    """
    family = profile(job)
    if family is None or family.toolkit is None or launchers.launcher(job) != "torch_distributed":
        return {}
    toolkit = tuple(map(int, family.toolkit.split(".")))
    since = EFA_SET_SINCE.get(job.instance_type)
    is_set = since is not None and toolkit >= since
    return EFA_VARIABLES if instances.efa(job.instance_type) and not is_set else {}


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
    image = aws_image(job.image, job.registry)
    return image.profile if image else None


def image_uri(job: Job) -> str:
    """The image's address in the job's region.

    Raises:
        UserError: it is not known where AWS keeps its images for that region.
    """
    family = profile(job)
    if family is None or "/" in job.image:
        return job.image
    for_gpus = instances.gpus(job.instance_type) != 0
    place = job.registry or registry(job.region)
    return f"{place}/{family.gpu if for_gpus else family.cpu}"


def registry(region: str) -> str:
    """The registry of AWS's images for a region.

    Raises:
        UserError: it is not known.
    """
    account = REGISTRIES.get(region)
    if account is None:
        raise UserError(
            f"the registry of AWS's images for {region} is not known here",
            "set image to the image's own URI",
        )
    return f"{account}.dkr.ecr.{region}.{aws.dns_suffix(region)}"


# AWS's images by their address: the tag says what is in them.

PUBLIC = "public.ecr.aws/deep-learning-containers"
ECR = re.compile(r"(\d{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.[a-z0-9.-]+/([^:@]+)(?::([^@]+))?")
# An image's address, [host[:port]/]path[:tag][@digest] (github.com/distribution/reference).
REFERENCE = re.compile(
    r"[A-Za-z0-9.-]+(:\d+)?(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)+"
    r"(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?")
# A tag of AWS's images for training, too long to be an owner's by chance: up to 2.10 with its
# Python, then without; a build's day and version may follow
# (https://aws.github.io/deep-learning-containers/reference/available_images/).
AWS_TAG = re.compile(
    r"\d+\.\d+(\.\d+)?-(gpu|cpu|cu\d+)(-py3\d+)?(-cu\d+)?-(ubuntu\d\d\.04|amzn\d+)-sagemaker"
    r"(-v\d+(\.\d+)*)?(-\d{4}-\d\d-\d\d-[\d-]+)?",
    re.ASCII,
)
# The SDK's lists end at 2.2 (fw_utils.SM_DATAPARALLEL_SUPPORTED_FRAMEWORK_VERSIONS), SMDDP's page
# of images at 2.3.0; the Dockerfiles of 2.4 and 2.5 still install it (2.5.0 and 2.6.0).
_NEWEST_WITH_SMDDP = SMDDP.version
_OLDEST_WITH_TORCHRUN = (1, 13)  # TORCH_DISTRIBUTED_GPU_SUPPORTED_FRAMEWORK_VERSIONS


@dataclass(frozen=True)
class AwsImage:
    """One of AWS's own images, as its address describes it."""

    account: str  # of its registry; empty: the public one
    region: str  # of its registry; empty: the public one
    repository: str
    tag: str

    @property
    def torch(self) -> Version | None:
        """Major and minor version of torch; None where the tag begins with none."""
        version = VERSION.match(self.tag)
        return (int(version[1]), int(version[2])) if version else None

    @property
    def profile(self) -> Profile | None:
        """The content of the image; None for repositories other than PyTorch for training."""
        if self.repository not in ("pytorch", "pytorch-training") or not self.torch:
            return None
        for known in PROFILES.values():
            if f"{self.repository}:{self.tag}" in (known.gpu, known.cpu):
                return known
        python = re.search(r"py3(\d+)", self.tag)
        cuda = re.search(r"cu(\d\d)(\d)", self.tag)
        release = RELEASES.get(self.torch)
        return Profile(
            name=f"{self.repository}:{self.tag}",
            gpu=f"{self.repository}:{self.tag}",
            cpu="" if cuda else f"{self.repository}:{self.tag}",
            python=f"3.{python[1]}" if python else "3.12",  # from 2.11 on, whose tags have none
            torch=_full_version(self.tag, release),
            cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
            launchers=_launchers(self.repository, self.torch, bool(cuda)),
            patched_until=release.patched_until if release else None,
            toolkit=release.toolkit if release else None,
            pytorch_toolkit=release.pytorch_toolkit if release else None,
            holds=_next_to_torch(release),
        )


def _full_version(tag: str, release: Release | None) -> str:
    """2.8.0 of 2.8.0-gpu-…; of 2.12-cu130-… the release's 2.12.1, of an unknown one 2.99.0."""
    version = str(VERSION.match(tag)[0])  # type: ignore[index]
    if version.count(".") == 2:
        return version
    return release.torch if release else f"{version}.0"


def _launchers(repository: str, torch: Version, for_gpus: bool) -> tuple[str, ...]:
    """Launchers that an image can start: mpirun needs mpi4py, which `pytorch` has not on GPUs."""
    available = ["none"]
    if torch >= _OLDEST_WITH_TORCHRUN:
        available.insert(0, "torch_distributed")
    if for_gpus and repository == "pytorch-training":
        available.insert(0, "pytorchddp")
        if torch <= _NEWEST_WITH_SMDDP:
            available.insert(0, "smddp")
    return tuple(available)


def is_fixed_build(uri: str) -> bool:
    """Whether an address is that of one build, which AWS's later ones do not replace."""
    return bool(re.search(r"@sha256:|-v\d+\.\d+|-\d{4}-\d\d-\d\d", uri))


def aws_image(uri: str, mirror: str = "") -> AwsImage | None:
    """The image at an address, where it is one of AWS's own; None for others.

    Args:
        uri: its address.
        mirror: a registry that holds AWS's images under their own names.
    """
    for registry_without_account in filter(None, (PUBLIC, mirror)):
        if uri.startswith(f"{registry_without_account}/"):
            name = uri.removeprefix(f"{registry_without_account}/").partition("@")[0]
            repository, _, tag = name.partition(":")
            return AwsImage("", "", repository, tag)
    address = ECR.fullmatch(uri.partition("@")[0])
    if not address or address[1] not in REGISTRIES.values():
        return None
    return AwsImage(address[1], address[2], address[3], address[4] or "")


def registry_for_inference(uri: str, region: str) -> str:
    """The registry that AWS's images for inference are in, next to a training image.

    The job may have trained in a mirror of AWS's registry, where repository and tag are AWS's own.
    Empty for other images.
    """
    if uri.startswith(f"{PUBLIC}/"):
        return registry(region)
    place = uri.rpartition("/")[0]
    own = aws_image(uri)
    image = own or aws_image(uri, place)
    is_of_aws = image and image.profile and (own or AWS_TAG.fullmatch(image.tag))
    return place if is_of_aws else ""
