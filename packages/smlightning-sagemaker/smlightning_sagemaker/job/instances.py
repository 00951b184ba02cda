"""Facts about SageMaker's instances: GPUs, memory, disks, network."""

import re
from collections.abc import Iterable

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
# MiB of one GPU, as AWS's DescribeInstanceTypes tells it (GpuInfo.Gpus.MemoryInfo.SizeInMiB), in
# the list of August 2026 that Karpenter publishes
# (https://karpenter.sh/preview/reference/instance-types/, instance-gpu-memory); p2 and p3, which
# it leaves out, from https://aws.amazon.com/ec2/instance-types/p3/ and the K80's 12 GiB.
_GPU_MEMORY_MIB = {
    "p2": 12_288,
    "p3": 16_384,
    "p3dn": 32_768,
    "p4d": 40_960,
    "p4de": 81_920,
    "p5": 81_920,
    "p5e": 144_384,
    "p5en": 144_384,
    "p6-b200": 183_359,
    "p6-b300": 275_040,
    "g4dn": 16_384,
    "g5": 22_888,
    "g6": 22_888,
    "g6e": 45_776,
    "gr6": 22_888,
    "g7": 32_768,
    "g7e": 98_304,
}
# GiB of an xlarge's main memory; a size has as many times that as its number says. By
# DescribeInstanceTypes' MemoryInfo.SizeInMiB, in the same list of August 2026 (instance-memory);
# p2 and p3 from AWS's pages of 2018. c5n.9xlarge and 18xlarge have 2 % more.
_XLARGE_GIB = {
    **dict.fromkeys(("m4", "m5", "m6i", "m7i", "m7i-flex", "m8i", "m8i-flex", "t3"), 16),
    **dict.fromkeys(("g4dn", "g5", "g6", "g7"), 16),
    **dict.fromkeys(("c5", "c6i", "c7i", "c7i-flex", "c8i", "c8i-flex"), 8),
    **dict.fromkeys(("r5", "r5d", "r6i", "r7i", "r8i", "r8i-flex"), 32),
    **dict.fromkeys(("p3dn", "g6e", "gr6"), 32),
    "c4": 7.5,
    "c5n": 10.5,
    "p3": 30.5,
    "p4d": 48,
    "p4de": 48,
}
_GIB = {  # of families without such a rule, by size
    "p2": {"xlarge": 61, "8xlarge": 488, "16xlarge": 732},
    "p5": {"4xlarge": 256, "48xlarge": 2048},
    "p5e": {"48xlarge": 2048},
    "p5en": {"48xlarge": 2048},
    "p6-b200": {"48xlarge": 2048},
    "p6-b300": {"48xlarge": 4096},
    "g7e": {
        "2xlarge": 64,
        "4xlarge": 128,
        "8xlarge": 256,
        "12xlarge": 512,
        "24xlarge": 1024,
        "48xlarge": 2048,
    },
}
_SIZE = re.compile(r"(\d*)xlarge")
_SMALL = {"medium": 0.25, "large": 0.5}  # of an xlarge
_GPU_FAMILIES = re.compile(r"(p|g|gr)\d")  # p6e-gb200 too, whose count is not in the table
# EC2 has EFA on larger g instances, too; for training jobs AWS documents it for these families
# (vpc.amazonaws.com/efa in Karpenter's list; sagemaker-training's SM_EFA_RDMA_INSTANCES).
_WITH_EFA = re.compile(r"p3dn|p4d|p5|p6|trn")
# EFA interfaces of an instance: vpc.amazonaws.com/efa in Karpenter's list, and the same numbers in
# sagemaker-hyperpod 3.12.0 (training/constants.py, INSTANCE_RESOURCES).
_EFA_INTERFACES = {
    "ml.p3dn.24xlarge": 1,
    "ml.p4d.24xlarge": 4,
    "ml.p4de.24xlarge": 4,
    "ml.p5.4xlarge": 1,
    "ml.p5.48xlarge": 32,
    "ml.p5e.48xlarge": 32,
    "ml.p5en.48xlarge": 16,
    "ml.p6-b200.48xlarge": 8,
    "ml.p6-b300.48xlarge": 16,
}


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


def gpu_memory(instance_type: str) -> int | None:
    """Bytes of one GPU's memory; None for a CPU instance and for a type not in the table."""
    mebibytes = _GPU_MEMORY_MIB.get(family(instance_type))
    return None if mebibytes is None else mebibytes * 2**20


def host_memory(instance_type: str) -> int | None:
    """Bytes of an instance's main memory; None for a type that is not in the table."""
    name, size = family(instance_type), instance_type.rpartition(".")[2]
    match = _SIZE.fullmatch(size)
    xlarges = int(match[1] or 1) if match else _SMALL.get(size, 0)
    gibibytes = _GIB.get(name, {}).get(size) or xlarges * _XLARGE_GIB.get(name, 0)
    return int(gibibytes * 2**30) or None


def larger_hosts(instance_type: str, memory: int, kinds: Iterable[str]) -> list[str]:
    """Those of ``kinds`` of the same family and number of GPUs that have ``memory`` bytes of main
    memory or more, the smallest first.
    """
    sizes = {
        kind: host_memory(kind) or 0
        for kind in kinds
        if family(kind) == family(instance_type) and gpus(kind) == gpus(instance_type)
    }
    enough = [kind for kind, size in sizes.items() if size >= memory]
    return sorted(enough, key=lambda kind: sizes[kind])


def families_with(memory: int) -> list[str]:
    """Families whose GPUs have more than ``memory`` bytes, the smallest GPUs first."""
    enough = [name for name, size in _GPU_MEMORY_MIB.items() if size * 2**20 > memory]
    return sorted(enough, key=lambda name: _GPU_MEMORY_MIB[name])


def efa(instance_type: str) -> bool:
    """Whether hosts of a job reach each other by EFA."""
    return bool(_WITH_EFA.match(family(instance_type)))


def efa_interfaces(instance_type: str) -> int | None:
    """EFA interfaces of one instance; 0 without EFA, None for a type that is not in the table."""
    return _EFA_INTERFACES.get(instance_type) if efa(instance_type) else 0
