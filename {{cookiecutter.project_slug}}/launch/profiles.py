"""Which launcher, image and instance go together: AWS's facts, as of November 2026, in one place."""

import json
import re
from dataclasses import dataclass
from datetime import date
from typing import Any

from launch.job import Job
from runtime.cluster import SMDDP_INSTANCES


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


# fmt: off
PROFILES = {each.name: each for each in (
    Profile("current", "pytorch:2.13-cu133-amzn2023-sagemaker", "pytorch:2.13-cpu-amzn2023-sagemaker",
            "3.12", "2.13.0", (13, 3), ("torch_distributed", "none"), date(2027, 7, 20)),
    # The last one with mpi4py, and so with mpirun, on GPUs.
    Profile("mpirun", "pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker", "",
            "3.13", "2.10.0", (13, 0), ("pytorchddp", "torch_distributed", "none"), date(2027, 1, 21)),
    # The last one with SMDDP (2.6.0).
    Profile("smddp", "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker", "",
            "3.11", "2.5.1", (12, 4), ("smddp", "pytorchddp", "torch_distributed", "none"), date(2025, 10, 29)),
)}
# fmt: on

# GPUs per instance, by its size, of the families that SageMaker trains on.
_ONE = dict.fromkeys(("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge"), 1)
_GPUS = {
    "p2": {"xlarge": 1, "8xlarge": 8, "16xlarge": 16},
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    **{family: {"24xlarge": 8} for family in ("p3dn", "p4d", "p4de")},
    "p5": {"4xlarge": 1, "48xlarge": 8},
    **{family: {"48xlarge": 8} for family in ("p5e", "p5en", "p6-b200", "p6-b300")},
    **{family: _ONE | {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8} for family in ("g4dn", "g5", "g6", "g6e")},
    **{family: _ONE | {"12xlarge": 2, "24xlarge": 4, "48xlarge": 8} for family in ("g7", "g7e")},
    "gr6": _ONE,
}
_GPU_FAMILIES = re.compile(r"(p|g|gr)\d")  # p6e-gb200 too, whose count is not in the table

# Variables of the container that the toolkit or a launcher sets, or by which libraries take a host for another
# cluster's: beginnings of names. A job's [environment] may not set them.
RESERVED_VARIABLES = (
    *("SM_", "SAGEMAKER_", "SMDATAPARALLEL_", "OMPI_", "PMIX_", "PET_", "TORCHELASTIC_", "SLURM_"),
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "NODE_RANK", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"),
)

# The container's entry point that forwards SageMaker's SIGTERM to training (`forward_stop`). A stop is SIGTERM to
# process 1, in AWS's images bash, which forwards nothing (sagemaker-training-toolkit#125, #173): the script is killed
# 120 s later. This one starts what the image would have started, and sends SIGTERM to every process whose command line
# names train.py, except launchers: torchrun and mpirun would give the ranks less time than SageMaker does (30 s, and
# 1 s). The ranks save and exit, and the launchers after them. AWS takes one line of at most 256 characters
# (CreateTrainingJob, ContainerEntrypoint). Proven on a replica of the container's processes, in the template's tests.
FORWARDING = [
    "bash",
    "-c",
    "start_with_right_hostname.sh train & c=$!; "
    "trap 'for p in /proc/[0-9]*; do grep -qas train[.]py $p/cmdline && "
    '! grep -qasE "(mpi|ddp|torch)run" $p/cmdline && kill ${p#/proc/}; done\' TERM; '
    "while kill -0 $c 2>&-; do wait $c; done; wait $c",
]

# torchrun's own long options, of torch 2.5 to 2.13; it takes each with hyphens and with underscores.
TORCHRUN = """
nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts monitor_interval
start_method event_log_handler role module no_python run_path log_dir redirects tee local_ranks_filter
duplicate_stdout_filters duplicate_stderr_filters node_rank master_addr master_port local_addr logs_specs numa_binding
signals_to_handle shutdown_timeout virtual_local_rank
""".split()  # noqa: SIM905


def abbreviates(option: str) -> list[str]:
    """Those of torchrun's options of which `--option` is an ambiguous beginning.

    Python 3.11's argparse looks at the script's arguments too and ends torchrun there; from 3.12 on it does not.
    """
    spelled = sorted({name for each in TORCHRUN for name in (each, each.replace("_", "-"))})
    found = [name for name in spelled if name.startswith(option)]
    return found if len(found) > 1 and option not in found else []


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


def nvme(instance_type: str) -> bool:
    """Whether the instance has NVMe disks of its own: AWS encrypts these itself, and refuses a KMS key for them."""
    return bool(re.match(r".*\d.*d|p[5-9]|gr?[5-9]|trn", family(instance_type)))  # a d, as in p4d and g4dn, or these


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


def flags(job: Job) -> dict[str, Any]:
    """The hyperparameters by which the toolkit in the container knows its launcher.

    The SDK writes the same ones for `distribution={"torch_distributed": …}` and `{"smdistributed": …}`, and none for
    plain mpirun: it rewrites {"pytorchddp": …} to {"smdistributed": …}, so that the script would be told to use SMDDP,
    which the image lacks, and p5 would be refused. So all are set here.
    """
    if launcher(job) == "none":
        return {}
    # mpirun's options: without this one the toolkit replaces NCCL_DEBUG of [environment] by INFO.
    level = job.environment.get("NCCL_DEBUG")
    mpi = {"sagemaker_distributed_dataparallel_custom_mpi_options": f"--NCCL_DEBUG={level}" if level else ""}
    own: dict[str, dict[str, Any]] = {
        "torch_distributed": {"sagemaker_torch_distributed_enabled": True},
        "smddp": {"sagemaker_distributed_dataparallel_enabled": True} | mpi,
        "pytorchddp": {"sagemaker_pytorch_ddp_enabled": True} | mpi,
    }
    return own[launcher(job)] | {"sagemaker_instance_type": job.instance_type}


def encoded(hyperparameters: dict[str, Any], name: str, region: str, code: str) -> dict[str, str]:
    """Hyperparameters as the SDK sends them: JSON, with those by which the toolkit in the container finds train.py."""
    own = dict(program="train.py", submit_directory=code, container_log_level=20, job_name=name, region=region)
    every = hyperparameters | {f"sagemaker_{key}": value for key, value in own.items()}
    return {key: json.dumps(value) for key, value in every.items()}
