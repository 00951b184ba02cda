"""Facts about SageMaker's instances: GPUs and network."""

import re

# GPUs per instance, by its size, of the families that SageMaker trains on, as of November 2026
# (https://aws.amazon.com/ec2/instance-types/accelerated-computing/).
_ONE = dict.fromkeys(("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge"), 1)
_G4_TO_G6 = {**_ONE, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_G7 = {**_ONE, "12xlarge": 2, "24xlarge": 4, "48xlarge": 8}
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
    "gr6": _ONE,
    "g7": _G7,
    "g7e": _G7,
}
_GPU_FAMILIES = re.compile(r"(p|g|gr)\d")  # p6e-gb200 too, whose count is not in the table
# EC2 has EFA on larger g instances, too; for training jobs AWS documents it for these families
# (vpc.amazonaws.com/efa in Karpenter's list; sagemaker-training's SM_EFA_RDMA_INSTANCES).
_WITH_EFA = re.compile(r"p3dn|p4d|p5|p6|trn")
_BEFORE_AMPERE = re.compile(r"p[23]|g[34]")
# Instances with NVMe disks (ec2/latest/instancetypes; CPU families end in d or dn).
_WITH_DISK = re.compile(r"g4dn|g[5-7]|gr6|p3dn|p4d|p5|p6|trn1|[cmr]\d[a-z]*d")


def family(instance_type: str) -> str:
    """`ml.p4d.24xlarge` → `p4d`."""
    return instance_type.removeprefix("ml.").split(".")[0]


def gpus(instance_type: str) -> int | None:
    """GPUs of one instance; 0 for a CPU instance, None for a GPU instance not in the table."""
    size = instance_type.rpartition(".")[2]
    known = _GPUS.get(family(instance_type), {}).get(size)
    if known is not None:
        return known
    return None if _GPU_FAMILIES.match(family(instance_type)) else 0


def efa(instance_type: str) -> bool:
    """Whether hosts of a job reach each other by EFA."""
    return bool(_WITH_EFA.match(family(instance_type)))


def bf16(instance_type: str) -> bool:
    """Whether the GPUs compute in bfloat16; true for instances without GPUs."""
    return not _BEFORE_AMPERE.match(family(instance_type))


def disk(instance_type: str) -> bool:
    """Whether the instance has its own disks; SageMaker then ignores `volume_gb`."""
    return bool(_WITH_DISK.match(family(instance_type)))
