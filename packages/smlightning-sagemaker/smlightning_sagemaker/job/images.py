"""AWS's Deep Learning Containers for PyTorch: three profiles, what each can start, its address."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from smlightning.cluster.location import SHARDING_NEEDS
from smlightning.errors import UserError
from smlightning_sagemaker.job import aws, instances, launchers
from smlightning_sagemaker.job.job import Job

Version = tuple[int, int]  # major and minor version of torch

# Holes in torch.load: the first torch without it, and what a malicious file can do until then.
HOLES = {
    # https://github.com/pytorch/pytorch/security/advisories/GHSA-53q9-r3pm-6pq6
    (2, 6): "execute code in torch.load, even with weights_only=True (CVE-2025-32434)",
    # https://github.com/pytorch/pytorch/security/advisories/GHSA-63cw-57p8-fm3p
    (2, 10): "corrupt memory in torch.load (CVE-2026-24747)",
}


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
    """The content of an image of AWS's."""

    name: str
    gpu: str  # repository:tag for GPU instances
    cpu: str  # for CPU instances; empty: AWS has no such image
    python: str
    torch: str
    cuda: tuple[int, int] | None  # None: an image for CPUs
    launchers: tuple[str, ...]
    # These are known of the profiles only.
    patched_until: date | None = None
    toolkit: str | None = None  # version of sagemaker-training
    pytorch_toolkit: str | None = None  # version of sagemaker-pytorch-training
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

    @property
    def minor(self) -> int:
        """The minor version of its Python 3."""
        return int(self.python.removeprefix("3."))

    @property
    def standard_library(self) -> set[str]:
        """The modules of its Python, whichever Python runs here."""
        gone = {
            each for minor, text in REMOVED.items() if minor <= self.minor for each in text.split()
        }
        later = {
            each for minor, text in ADDED.items() if minor > self.minor for each in text.split()
        }
        known = {"distutils", *" ".join([*REMOVED.values(), *ADDED.values()]).split()}
        return {*sys.stdlib_module_names, *known} - gone - later

    @property
    def holes(self) -> list[str]:
        """The harm that a malicious file can do in this image."""
        return [harm for fixed, harm in HOLES.items() if self.version < fixed]

    def limits(self, options: Mapping[str, Any]) -> Iterator[Limit]:
        """The limits of its torch that these options of train.py exceed."""
        for limit in LIMITS:
            has_all = all(options.get(name) == value for name, value in limit.options.items())
            if has_all and self.version < limit.before:
                yield limit


# docker/pytorch/2.13/cuda/uv.lock of github.com/aws/deep-learning-containers, read in November
# 2026: packages that a requirements.txt need not list there, or that pip would wrongly replace. AWS
# publishes no lock file of images before 2.11.
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
# Package → module of what images have, next to the packages of a profile. The versions are not
# known; an image without SMDDP or mpirun lacks the module of it.
MODULES = {
    "boto3": "boto3",
    "botocore": "botocore",
    "flash-attn": "flash_attn",
    "mpi4py": "mpi4py",
    "numpy": "numpy",
    "pillow": "PIL",
    "pip": "pip",
    "sagemaker-pytorch-training": "sagemaker_pytorch_container",
    "sagemaker-training": "sagemaker_training",
    "setuptools": "setuptools",
    "smdistributed-dataparallel": "smdistributed",
    "torch": "torch",
    "torchaudio": "torchaudio",
    "torchvision": "torchvision",
    "transformer-engine": "transformer_engine",
    "triton": "triton",
    "wheel": "wheel",
}
# Modules of the standard library that a minor version of Python 3 removed, or added. setuptools has
# distutils (https://docs.python.org/3/whatsnew/).
REMOVED = {
    12: "asynchat asyncore imp smtpd",
    13: "aifc audioop cgi cgitb chunk crypt imghdr lib2to3 mailcap msilib nis nntplib ossaudiodev "
    "pipes sndhdr spwd sunau telnetlib uu xdrlib",
}
ADDED = {11: "tomllib", 14: "annotationlib compression"}
# Packages that images have built for their CUDA, NCCL, EFA and SMDDP. The libraries of CUDA are
# those that torch requires; others of NVIDIA's packages, as nvidia-ml-py, replace nothing.
CUDA_VERSION = re.compile(r"-cu\d+$")
OWN_BUILDS = {
    *("torch", "torchvision", "torchaudio", "triton", "pytorch-triton"),
    *(CUDA_VERSION.sub("", name) for name in _IN_2_13 if name.startswith("nvidia-")),
}


def is_own_build(package: str) -> bool:
    """Whether images have their own build of the package, which pip would replace with PyPI's."""
    return CUDA_VERSION.sub("", canonicalize_name(package)) in OWN_BUILDS


# https://aws.github.io/deep-learning-containers/reference/available_images/, as of November 2026.
# Sources of the rest, as of August 2026: docs/src/data of github.com/aws/deep-learning-containers
# for Python and the last day of patches; docker/pytorch/*/uv.lock for the toolkits from 2.11 on.
# Earlier Dockerfiles pin no toolkit: theirs are the newest that PyPI had on the day of the
# Dockerfile's last change, which for 2.5 was 2025-08-04. torchvision and torchaudio are built for
# one torch each (their metadata on PyPI).
CURRENT = Profile(
    name="current",
    gpu="pytorch:2.13-cu133-amzn2023-sagemaker",
    cpu="pytorch:2.13-cpu-amzn2023-sagemaker",
    python="3.12",
    torch="2.13.0",
    cuda=(13, 3),
    launchers=("torch_distributed", "none"),
    patched_until=date(2027, 7, 20),
    toolkit="5.1.1",
    pytorch_toolkit="3.0.0",
    holds={"torchvision": "0.28.0", "torchaudio": "2.11.0", **_IN_2_13},
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
    toolkit="5.1.1",
    pytorch_toolkit="3.0.0",
    holds={"torchvision": "0.25.0", "torchaudio": "2.10.0"},
)
SMDDP = Profile(  # the last one with SMDDP (2.6.0)
    name="smddp",
    gpu="pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker",
    cpu="",
    python="3.11",
    torch="2.5.1",
    cuda=(12, 4),
    launchers=("smddp", "pytorchddp", "torch_distributed", "none"),
    patched_until=date(2025, 10, 29),
    toolkit="5.0.0",
    pytorch_toolkit="2.9.0",
    holds={"torchvision": "0.20.1", "torchaudio": "2.5.1"},
)
PROFILES = {each.name: each for each in (CURRENT, MPIRUN, SMDDP)}
IMAGE_OF_LAUNCHER = {"smddp": SMDDP, "pytorchddp": MPIRUN}  # any other launcher: the current one

# Instance types for which the toolkits of these images set FI_PROVIDER=efa under torchrun
# (SM_EFA_NCCL_INSTANCES of sagemaker-training 5.0.0 to 5.1.1; 5.1.2 adds p5e). Under mpirun they do
# so for every type (smdataparallel.py).
EFA_SET = frozenset(
    {
        "ml.g4dn.8xlarge",
        "ml.g4dn.12xlarge",
        "ml.g5.48xlarge",
        "ml.p3dn.24xlarge",
        "ml.p4d.24xlarge",
        "ml.p4de.24xlarge",
        "ml.p5.48xlarge",
    }
)
# The request sets these where the toolkit does not. FI_EFA_USE_DEVICE_RDMA is needed before
# libfabric 1.18 only, and these images have newer ones (EFA installer 1.36.0 and later);
# RDMAV_FORK_SAFE, which the toolkit sets, AWS advises against (awslabs/awsome-distributed-ai,
# efa-cheatsheet.md).
EFA_VARIABLES = {"FI_PROVIDER": "efa"}


def efa_variables(job: Job) -> dict[str, str]:
    """Variables without which NCCL may take TCP sockets between hosts that have EFA.

    Empty where the image's toolkit sets them, or the image is not AWS's.
    """
    if profile(job) is None or launchers.launcher(job) != "torch_distributed":
        return {}
    kinds = [each.instance_type for each in job.variants]
    return (
        EFA_VARIABLES if any(instances.efa(kind) and kind not in EFA_SET for kind in kinds) else {}
    )


# Registries and tags, as SDK v3 knows them; packages/update_tables.py writes the file.
TABLES: dict[str, Any] = json.loads(Path(__file__).with_name("tables.json").read_bytes())
REGISTRIES: dict[str, str] = TABLES["registries"]  # region → account


def profile(job: Job) -> Profile | None:
    """The content of the job's image; None for an image of the owner's own, or by its digest."""
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
    for_gpus = any(instances.gpus(each.instance_type) != 0 for each in job.variants)
    return f"{registry(job.region)}/{family.gpu if for_gpus else family.cpu}"


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


# Images by their address: AWS's tag says what is in them.

PUBLIC = "public.ecr.aws/deep-learning-containers"
ECR = re.compile(r"(\d{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.[a-z0-9.-]+/([^:@]+)(?::([^@]+))?")
BUILD = re.compile(r"(-v\d+(\.\d+)*)?(-\d{4}-\d\d-\d\d-[\d-]+)?$")  # at the end of a tag
AWS_TAG = re.compile(r"\d+\.\d+(\.\d+)?-(gpu|cpu|cu\d+)-[\w.-]*-sagemaker")
VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)?(-|$)")
OF_PROFILES = {tag: each for each in PROFILES.values() for tag in (each.gpu, each.cpu) if tag}


@dataclass(frozen=True)
class AwsImage:
    """One of AWS's own images, as its address describes it."""

    account: str  # of its registry; empty: the public one
    region: str  # of its registry; empty: the public one
    repository: str
    tag: str

    @property
    def is_listed(self) -> bool:
        """Whether the SDK's table has the tag; of repositories other than PyTorch it has none."""
        tag = BUILD.sub("", self.tag)
        if self.repository == "pytorch-training":
            return tag.startswith(tuple(TABLES["tags"][self.repository]))
        return self.repository != "pytorch" or tag in TABLES["tags"][self.repository]

    @property
    def torch(self) -> Version | None:
        """Major and minor version of torch; None where the tag begins with none."""
        version = VERSION.match(self.tag)
        return (int(version[1]), int(version[2])) if version else None

    @property
    def profile(self) -> Profile | None:
        """The content of the image; None for repositories other than PyTorch for training."""
        name = f"{self.repository}:{self.tag}"
        if known := profile_of_tag(name):
            return known
        if self.repository not in ("pytorch", "pytorch-training") or self.torch is None:
            return None
        torch = self.tag.partition("-")[0]
        python = re.search(r"py3(\d+)", self.tag)
        cuda = re.search(r"cu(\d\d)(\d)", self.tag)
        started = CURRENT.launchers
        if cuda and self.repository == "pytorch-training":  # it has mpi4py
            started = SMDDP.launchers if self.torch <= SMDDP.version else MPIRUN.launchers
        return Profile(
            name=name,
            gpu=name,
            cpu="" if cuda else name,
            python=f"3.{python[1]}" if python else "3.12",  # from 2.11 on, whose tags have none
            torch=torch if torch.count(".") == 2 else f"{torch}.0",
            cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
            launchers=started,
        )


def aws_image(uri: str) -> AwsImage | None:
    """The image at an address in one of AWS's own registries, or of a mirror; None for others.

    A mirror or a pull-through cache keeps the name of the repository and AWS's tag.
    """
    uri = uri.partition("@")[0]
    if uri.startswith(f"{PUBLIC}/"):
        repository, _, tag = uri.removeprefix(f"{PUBLIC}/").partition(":")
        return AwsImage("", "", repository, tag)
    address = ECR.fullmatch(uri)
    if address and address[1] in REGISTRIES.values():
        return AwsImage(address[1], address[2], address[3], address[4] or "")
    repository, _, tag = uri.rpartition("/")[2].partition(":")
    is_mirror = repository in TABLES["tags"] and AWS_TAG.fullmatch(BUILD.sub("", tag))
    return AwsImage("", "", repository, tag) if is_mirror else None


def profile_of_tag(name: str) -> Profile | None:
    """The profile of a repository:tag, which may name one build of the image."""
    return OF_PROFILES.get(BUILD.sub("", name))
