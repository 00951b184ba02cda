"""The launcher of a job's processes, and the hyperparameters that select it."""

from typing import Any

from smlightning_sagemaker.job import instances
from smlightning_sagemaker.job.job import Job

# Variables of the container that the toolkit or a launcher sets, whatever a job's [environment]
# says: sagemaker-training 5.1.1 (environment.py, to_env_vars; smdataparallel.py),
# torchrun of torch 2.13 (elastic/agent/server/local_elastic_agent.py), Open MPI 4.1; and those by
# which Lightning or cluster/slurm.py takes a host for one of Slurm's.
RESERVED_VARIABLES = frozenset(
    """
    SM_NETWORK_INTERFACE_NAME SM_HOSTS SM_CURRENT_HOST SM_HPS SM_USER_ENTRY_POINT SM_USER_ARGS
    SM_FRAMEWORK_PARAMS SM_FRAMEWORK_MODULE SM_RESOURCE_CONFIG SM_INPUT_DATA_CONFIG SM_CHANNELS
    SM_CURRENT_INSTANCE_TYPE SM_CURRENT_INSTANCE_GROUP SM_CURRENT_INSTANCE_GROUP_HOSTS
    SM_INSTANCE_GROUPS SM_INSTANCE_GROUPS_DICT SM_DISTRIBUTION_INSTANCE_GROUPS SM_IS_HETERO
    SM_MODULE_NAME SM_MODULE_DIR SM_LOG_LEVEL SM_INPUT_DIR SM_INPUT_CONFIG_DIR SM_OUTPUT_DIR
    SM_OUTPUT_DATA_DIR SM_OUTPUT_INTERMEDIATE_DIR SM_MODEL_DIR SM_NUM_CPUS SM_NUM_GPUS
    SM_NUM_NEURONS SM_TRAINING_ENV SM_DLC_TORCH_VERSION
    SAGEMAKER_TRAINING_MODULE SAGEMAKER_BASE_DIR SAGEMAKER_PROGRAM SAGEMAKER_SUBMIT_DIRECTORY
    SAGEMAKER_REGION SAGEMAKER_JOB_NAME SAGEMAKER_CONTAINER_LOG_LEVEL SAGEMAKER_INSTANCE_TYPE
    SMDATAPARALLEL_USE_HOMOGENEOUS SMDATAPARALLEL_USE_SINGLENODE SMDATAPARALLEL_SERVER_ADDR
    SMDATAPARALLEL_SERVER_PORT
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK
    ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID
    TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE
    TORCHELASTIC_ERROR_FILE PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR
    PET_MASTER_PORT PMIX_RANK PMIX_NAMESPACE
    SLURM_JOB_ID SLURM_JOB_NAME SLURM_NTASKS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NNODES
    SLURM_NODELIST SLURM_STEP_NUM_TASKS
    """.split()  # noqa: SIM905
)
# Beginnings of variables that are set for each channel and option, and by mpirun.
RESERVED_BEGINNINGS = ("SM_CHANNEL_", "SM_HP_", "OMPI_COMM_WORLD_")

# The container's entry point that forwards SageMaker's SIGTERM to training (`forward_stop`).
# A stop is SIGTERM to process 1, in AWS's images bash, which forwards nothing
# (sagemaker-training-toolkit#125, #173): the script is killed 120 s later. This one starts the same
# program as the image, and sends SIGTERM to every process whose command line names train.py,
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


def reserves(variable: str) -> bool:
    """Whether the toolkit or a launcher sets the variable of the container itself."""
    return variable in RESERVED_VARIABLES or variable.startswith(RESERVED_BEGINNINGS)


def launcher(job: Job) -> str:
    """The launcher that `distribution` means; `auto` follows the number of GPUs.

    `auto` is never smddp: AWS no longer patches the last image that has it (images.SMDDP).
    """
    if job.distribution != "auto":
        return job.distribution
    is_one_process = all(
        each.instance_count == 1 and instances.gpus(each.instance_type) in (0, 1)
        for each in job.variants
    )
    return "none" if is_one_process else "torch_distributed"


ENABLED = {  # by launcher
    "torch_distributed": "sagemaker_torch_distributed_enabled",
    "smddp": "sagemaker_distributed_dataparallel_enabled",
    "pytorchddp": "sagemaker_pytorch_ddp_enabled",
}


def flags(job: Job) -> dict[str, Any]:
    """The hyperparameters by which the toolkit in the container knows its launcher.

    The SDK writes the same ones for `distribution={"torch_distributed": …}` and
    `{"smdistributed": …}`, and none for plain mpirun: it rewrites {"pytorchddp": …} to
    {"smdistributed": …}, so that the script would use SMDDP, which the image lacks, and p5 would be
    rejected. So all are set here.
    """
    name = launcher(job)
    if name == "none":
        return {}
    options = {} if name == "torch_distributed" else _mpi_options(job)
    return {ENABLED[name]: True, **options, **_hosts(job)}


def _hosts(job: Job) -> dict[str, Any]:
    """Hyperparameters that describe the hosts to the toolkit.

    Without a type it reads the host's own (smdataparallel.py), and without the groups' names each
    group would be a cluster by itself: its hosts start a training of their own (environment.py,
    get_distribution_instance_groups_from_resource_config; SDK v2 takes one group's name only).
    """
    if not job.other_hosts:
        return {"sagemaker_instance_type": job.instance_type}
    names = [group.get("InstanceGroupName") for group in job.other_hosts.get("InstanceGroups", [])]
    return {"sagemaker_distribution_instance_groups": names} if names else {}


def _mpi_options(job: Job) -> dict[str, Any]:
    """The hyperparameter without which the toolkit sets NCCL_DEBUG of [environment] to INFO.

    The toolkit's shell gets it, so it has to be a word, as NCCL's levels are.
    """
    level = job.environment.get("NCCL_DEBUG", "")
    option = f"--NCCL_DEBUG={level}" if level.isalpha() else ""
    return {"sagemaker_distributed_dataparallel_custom_mpi_options": option}
