"""Which launcher, image and instance go together: AWS's facts, as of November 2026, in one place."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Any

from launch.job import Job


@dataclass(frozen=True)
class Profile:
    """An image family of AWS's Deep Learning Containers. `image_uri` skips the SDK's own version lists, which lag."""

    name: str
    gpu: str  # repository:tag for GPU instances
    cpu: str  # for CPU instances; empty: there is none
    python: str
    torch: str
    cuda: tuple[int, int]
    launchers: tuple[str, ...]
    patched_until: date


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "current",
            gpu="pytorch:2.13-cu133-amzn2023-sagemaker",
            cpu="pytorch:2.13-cpu-amzn2023-sagemaker",
            python="3.12",
            torch="2.13.0",
            cuda=(13, 3),
            launchers=("torch_distributed", "none"),
            patched_until=date(2027, 7, 20),
        ),
        Profile(  # the last one with mpi4py, and so with mpirun, on GPUs
            "mpirun",
            gpu="pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker",
            cpu="",
            python="3.13",
            torch="2.10.0",
            cuda=(13, 0),
            launchers=("pytorchddp", "torch_distributed", "none"),
            patched_until=date(2027, 1, 21),
        ),
        Profile(  # the last one with SMDDP (2.6.0)
            "smddp",
            gpu="pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker",
            cpu="",
            python="3.11",
            torch="2.5.1",
            cuda=(12, 4),
            launchers=("smddp", "pytorchddp", "torch_distributed", "none"),
            patched_until=date(2025, 10, 29),
        ),
    )
}

# GPUs per instance, of the sizes and families that SageMaker trains on.
_ONE = dict.fromkeys(("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge"), 1)
_G4_TO_G6 = _ONE | {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_GPUS = {
    "p2": {"xlarge": 1, "8xlarge": 8, "16xlarge": 16},
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"4xlarge": 1, "48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "p6-b200": {"48xlarge": 8},
    "p6-b300": {"48xlarge": 8},
    "g4dn": _G4_TO_G6,
    "g5": _G4_TO_G6,
    "g6": _G4_TO_G6,
    "g6e": _G4_TO_G6,
    "g7e": {"2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 2, "24xlarge": 4, "48xlarge": 8},
}
_GPU_FAMILIES = re.compile(r"p\d|g\d")  # p6e-gb200 and g7 too, whose counts are not in the table

SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")  # AWS's list; SDK v2 holds one too and never checks it


def family(instance_type: str) -> str:
    """`ml.p4d.24xlarge` → `p4d`."""
    return instance_type.removeprefix("ml.").split(".")[0]


def gpus(instance_type: str) -> int | None:
    """GPUs of one instance; 0 for a CPU instance, None for a GPU instance that the table does not know."""
    size = instance_type.rpartition(".")[2]
    known = _GPUS.get(family(instance_type), {}).get(size)
    if known is not None:
        return known
    return None if _GPU_FAMILIES.match(family(instance_type)) else 0


def has_efa(instance_type: str) -> bool:
    """Whether hosts of this type talk over EFA, which works within one zone only."""
    return bool(re.match(r"p3dn$|p4d|p5|p6|trn", family(instance_type)))


def launcher(job: Job) -> str:
    """The launcher that `distribution` means; `auto` follows the instance, as job.toml says."""
    if job.distribution != "auto":
        return job.distribution
    if job.instance_type in SMDDP_INSTANCES:
        return "smddp"
    if job.instance_count == 1 and gpus(job.instance_type) in (0, 1):
        return "none"
    return "torch_distributed"


def profile(job: Job) -> Profile | None:
    """The image family of the job; None where `image` is none of them, but a URI, of which nothing is known here."""
    if job.image != "auto":
        return PROFILES.get(job.image)
    return PROFILES[{"smddp": "smddp", "pytorchddp": "mpirun"}.get(launcher(job), "current")]


def distribution(job: Job) -> dict[str, Any] | None:
    """The estimator's `distribution` for the job's launcher."""
    if launcher(job) == "smddp":
        return {"smdistributed": {"dataparallel": {"enabled": True}}}
    if launcher(job) == "torch_distributed":
        return {"torch_distributed": {"enabled": True}}
    return None  # pytorchddp too: see `flags`


def flags(job: Job) -> dict[str, Any]:
    """Hyperparameters that start pytorchddp's mpirun, which no `distribution` of SDK v2 does.

    The SDK rewrites {"pytorchddp": …} to {"smdistributed": …}: the script would be told to use SMDDP, which the image
    lacks, and p5 would be refused. The toolkit in the container still reads these two.
    """
    if launcher(job) != "pytorchddp":
        return {}
    return {"sagemaker_pytorch_ddp_enabled": True, "sagemaker_instance_type": job.instance_type}
