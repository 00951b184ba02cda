"""How the processes of a job are started: the launcher, and how the container is told of it."""

from typing import Any

from smlightning.cluster.location import SMDDP_INSTANCES
from smlightning.launch import instances
from smlightning.launch.job import Job

# Variables of the container that the toolkit or a launcher sets, or by which libraries take a host
# for another cluster's: beginnings of names. A job's [environment] may not set them.
RESERVED_VARIABLES = (
    "SM_",
    "SAGEMAKER_",
    "SMDATAPARALLEL_",
    "OMPI_",
    "PMIX_",
    "PET_",
    "TORCHELASTIC_",
    "SLURM_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "NODE_RANK",
    "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES",
)

# The container's entry point that forwards SageMaker's SIGTERM to training (`forward_stop`).
# A stop is SIGTERM to process 1, in AWS's images bash, which forwards nothing
# (sagemaker-training-toolkit#125, #173): the script is killed 120 s later. This one starts what the
# image would have started, and sends SIGTERM to every process whose command line names train.py,
# except launchers: torchrun and mpirun would give the ranks less time than SageMaker does (30 s,
# and 1 s). The ranks save and exit, and the launchers after them. AWS takes one line of at most 256
# characters (CreateTrainingJob, ContainerEntrypoint). Proven on a replica of the container's
# processes, in the template's tests.
FORWARDING = [
    "bash",
    "-c",
    "start_with_right_hostname.sh train & c=$!; "
    "trap 'for p in /proc/[0-9]*; do grep -qas train[.]py $p/cmdline && "
    '! grep -qasE "(mpi|ddp|torch)run" $p/cmdline && kill ${p#/proc/}; done\' TERM; '
    "while kill -0 $c 2>&-; do wait $c; done; wait $c",
]

# torchrun's own long options, of torch 2.5 to 2.13; it takes each with hyphens and underscores.
TORCHRUN = """
nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts
monitor_interval start_method event_log_handler role module no_python run_path log_dir redirects tee
local_ranks_filter duplicate_stdout_filters duplicate_stderr_filters node_rank master_addr
master_port local_addr logs_specs numa_binding signals_to_handle shutdown_timeout virtual_local_rank
""".split()  # noqa: SIM905


def launcher(job: Job) -> str:
    """The launcher that `distribution` means; `auto` follows the instance, as job.toml says."""
    if job.distribution != "auto":
        return job.distribution
    if job.instance_type in SMDDP_INSTANCES:
        return "smddp"
    if job.instance_count == 1 and instances.gpus(job.instance_type) in (0, 1):
        return "none"
    return "torch_distributed"


def flags(job: Job) -> dict[str, Any]:
    """The hyperparameters by which the toolkit in the container knows its launcher.

    The SDK writes the same ones for `distribution={"torch_distributed": …}` and
    `{"smdistributed": …}`, and none for plain mpirun: it rewrites {"pytorchddp": …} to
    {"smdistributed": …}, so that the script would be told to use SMDDP, which the image lacks, and
    p5 would be refused. So all are set here.
    """
    name = launcher(job)
    if name == "none":
        return {}
    if name == "torch_distributed":
        enabled = {"sagemaker_torch_distributed_enabled": True}
    elif name == "smddp":
        enabled = {"sagemaker_distributed_dataparallel_enabled": True, **_mpi_options(job)}
    else:
        enabled = {"sagemaker_pytorch_ddp_enabled": True, **_mpi_options(job)}
    return {**enabled, "sagemaker_instance_type": job.instance_type}


def _mpi_options(job: Job) -> dict[str, Any]:
    """Without this one the toolkit replaces NCCL_DEBUG of [environment] by INFO."""
    level = job.environment.get("NCCL_DEBUG")
    option = f"--NCCL_DEBUG={level}" if level else ""
    return {"sagemaker_distributed_dataparallel_custom_mpi_options": option}


def abbreviates(option: str) -> list[str]:
    """Those of torchrun's options of which `--option` is an ambiguous beginning.

    Python 3.11's argparse looks at the script's arguments too and ends torchrun there; from 3.12 on
    it does not.
    """
    spelled = {name for each in TORCHRUN for name in (each, each.replace("_", "-"))}
    beginning = sorted(name for name in spelled if name.startswith(option))
    return beginning if len(beginning) > 1 and option not in beginning else []
