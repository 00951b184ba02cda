"""Computes a process's Cluster (ranks, hosts, backend) from its environment variables.

Processes are started by nothing, torchrun, mpirun, smddprun under mpirun (AWS's SMDDP), or srun
(Slurm). This module neither reads ``os.environ`` nor imports torch: ``session.py`` passes both in.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from smlightning.cluster import slurm
from smlightning.errors import UserError

SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
# AWS's list of SMDDP's instances has it for AllReduce, without further development: a job may name
# it, and no job gets SMDDP there by itself.
OLD_SMDDP_INSTANCE = "ml.p3dn.24xlarge"
# The first torch whose FSDP2 has public names: torch.distributed.fsdp.fully_shard, FSDPModule.
SHARDING_NEEDS = (2, 6)
DEFAULT_PORT = 7777  # of the store, as SageMaker has it


def runs_smddp(instance_type: str) -> bool:
    """Whether SMDDP's AllReduce runs there."""
    return instance_type in (*SMDDP_INSTANCES, OLD_SMDDP_INSTANCE)


@dataclass(frozen=True)
class RankVariables:
    """Names of the environment variables in which a launcher gives a process its place."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


LAUNCHERS = {
    "torchrun": RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": RankVariables(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}

# The number of processes of other MPIs: MPICH's and Intel MPI's Hydra, and MVAPICH2.
OTHER_MPI = ("PMI_SIZE", "MV2_COMM_WORLD_SIZE")


class ClusterError(UserError):
    """The launcher's variables are wrong, or a rank did not connect or went away."""


@dataclass(frozen=True)
class Machine:
    """Facts about this host that decide on device and backend."""

    gpus: int = 0
    has_nccl: bool = False
    torch_version: str = ""


@dataclass(frozen=True)
class Cluster:
    """This process's place in the job.

    Ranks count from 0; rank = node_rank × local_world_size + local_rank.
    """

    hosts: tuple[str, ...]
    node_rank: int
    rank: int
    local_rank: int
    local_world_size: int  # processes on each host
    world_size: int  # processes in all
    launcher: str  # none, torchrun, mpirun, smddprun, srun
    backend: str  # none, gloo, nccl, smddp
    device: str  # cpu, cuda:<local rank>
    main_address: str  # of rank 0's host, which keeps the store
    main_port: int

    @property
    def num_nodes(self) -> int:
        return len(self.hosts)

    @property
    def accelerator(self) -> str:
        """The Trainer's name for the kind of device."""
        return "cpu" if self.device == "cpu" else "gpu"

    def name(self, rank: int) -> str:
        """A rank in messages."""
        return f"rank {rank} on host {self.hosts[rank // self.local_world_size]}"


def locate(env: Mapping[str, str], machine: Machine) -> Cluster:
    """The cluster that the environment variables describe; a pure function.

    It reads sagemaker-training's SM_* (https://github.com/aws/sagemaker-training-toolkit),
    torchrun's (https://docs.pytorch.org/docs/stable/elastic/run.html), Open MPI's
    OMPI_COMM_WORLD_* and Slurm's (slurm.py).

    Raises:
        ClusterError: variables are missing, or would start several trainings or train on no GPU.
        UserError: Slurm's variables contradict another launcher's.
    """
    step = slurm.find_step(env)
    if step:
        env = {**env, **step.variables}
    launcher = _launcher(env)
    rank, world_size, local_rank, local_world_size = 0, 1, 0, 1
    if launcher != "none":
        names = LAUNCHERS[launcher]
        rank, world_size = _integer(env, names.rank), _integer(env, names.world_size)
        local_rank = _integer(env, names.local_rank)
        local_world_size = _integer(env, names.local_world_size)
        if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size:
            raise ClusterError(
                f"rank {rank} of {world_size}, local rank {local_rank} of {local_world_size}, is "
                "out of range",
                f"let only {launcher} set {', '.join(astuple(names))}",
            )
    elif others := [name for name in OTHER_MPI if env.get(name, "1") != "1"]:
        raise ClusterError(
            f"{others[0]} is {env[others[0]]}: the processes of MPICH, Intel MPI or MVAPICH2 would "
            "each train as rank 0",
            "start the command with torchrun, or with Open MPI's mpirun",
        )
    hosts = step.hosts if step else tuple(map(str, _json(env, "SM_HOSTS", [])))
    num_nodes = len(hosts) or world_size // local_world_size
    expected = num_nodes * local_world_size
    if world_size != expected:  # hosts would train apart, each as rank 0
        hint = (
            "set distribution to torch_distributed, smddp or pytorchddp, or instance_count to 1; "
            "start the same number of processes on every host"
        )
        if launcher == "mpirun" and "SM_DISTRIBUTED_CONFIG" in env:
            # SDK v3's driver passes -np with the processes of one host (sagemaker-train 1.27.0).
            hint = f'pass mpi_additional_options=["-np", "{expected}"] to the MPI of ModelTrainer'
        raise ClusterError(
            f"found {world_size} processes; expected {expected}, since each of "
            f"{num_nodes} hosts has {local_world_size} (SM_HOSTS={env.get('SM_HOSTS', 'unset')})",
            hint,
        )
    if local_rank != rank % local_world_size:  # mpirun --map-by node
        raise ClusterError(
            f"rank {rank} is process {local_rank} of {local_world_size} on its host; expected "
            "consecutive ranks on each host",
            "start mpirun with --map-by slot",
        )
    placeholders = (f"node-{number}" for number in range(num_nodes))
    default_address = hosts[0] if hosts else "127.0.0.1"
    main_address = env.get("MASTER_ADDR") or default_address
    if num_nodes > 1 and not hosts and not env.get("MASTER_ADDR"):
        raise ClusterError(
            f"{num_nodes} hosts were started, and MASTER_ADDR is unset", "set it to rank 0's host"
        )
    is_smddp = launcher == "mpirun" and _uses_smddp(env)
    device = _device(env, machine, local_rank, local_world_size)
    backend = "nccl" if device != "cpu" and machine.has_nccl else "gloo"
    if is_smddp:
        launcher, backend = "smddprun", "smddp"
    if step:
        launcher = "srun"
    return Cluster(
        hosts=hosts or (("localhost",) if num_nodes == 1 else tuple(placeholders)),
        node_rank=rank // local_world_size,
        rank=rank,
        local_rank=local_rank,
        local_world_size=local_world_size,
        world_size=world_size,
        launcher=launcher,
        backend=backend if world_size > 1 else "none",
        device=device,
        main_address=main_address,
        main_port=_port(env.get("MASTER_PORT", str(DEFAULT_PORT))),
    )


def check_shard_size(shard_size: int, world_size: int) -> None:
    """Raise a ClusterError if no groups of that size hold all ranks; 0: the ranks are one group."""
    fitting = [size for size in range(2, world_size + 1) if world_size % size == 0]
    if shard_size and shard_size not in fitting:
        sizes = ", ".join(map(str, fitting))
        raise ClusterError(
            f"--shard_size is {shard_size}; expected a divisor of the {world_size} ranks, above 1",
            f"set it to one of {sizes}, or to 0 for all ranks; or set --strategy to ddp",
        )


def _launcher(env: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    for launcher in ("mpirun", "torchrun"):  # smddprun sets torchrun's variables too
        if any(name in env for name in astuple(LAUNCHERS[launcher])):
            return launcher
    return "none"


def _integer(env: Mapping[str, str], name: str) -> int:
    """The variable ``name`` as a number."""
    text = env.get(name, "unset")
    try:
        return int(text)
    except ValueError:
        launcher = next(each for each in map(astuple, LAUNCHERS.values()) if name in each)
        others = [other for other in launcher if other in env and other != name]
        found = ", ".join(others) or "TORCHELASTIC_RUN_ID"
        raise ClusterError(
            f"{name} is {text}, and the environment has {found}",
            f"start the command with torchrun or mpirun, which set {name}; for a single process "
            f"unset {found}",
        ) from None


def _json(env: Mapping[str, str], name: str, empty: list[Any] | dict[str, Any]) -> Any:
    """The variable ``name``, JSON of the type of ``empty``; ``empty`` if it is unset."""
    if name not in env:
        return empty
    with contextlib.suppress(ValueError):
        value = json.loads(env[name])
        if isinstance(value, type(empty)):
            return value
    raise ClusterError(
        f"{name} is {env[name][:80]!r}; expected JSON such as {empty}",
        f"let SageMaker set {name}, or unset it",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise ClusterError(
            f"MASTER_PORT is {text[:40]!r}; expected a port, 1 to 65535",
            "correct MASTER_PORT, or unset it",
        )
    return int(text)


def _uses_smddp(env: Mapping[str, str]) -> bool:
    """Whether the job's distribution is smddp."""
    params = _json(env, "SM_FRAMEWORK_PARAMS", {})
    if params.get("sagemaker_pytorch_ddp_enabled"):  # the toolkit looks at this one first
        return False
    return bool(params.get("sagemaker_distributed_dataparallel_enabled"))


def _device(
    env: Mapping[str, str], machine: Machine, local_rank: int, local_world_size: int
) -> str:
    """``cuda:<local rank>`` if the host has GPUs, else ``cpu``."""
    expected_gpus = env.get("SM_NUM_GPUS", "0")
    is_hidden = "CUDA_VISIBLE_DEVICES" in env
    if expected_gpus not in ("", "0") and not machine.gpus and not is_hidden:
        raise ClusterError(
            f"SM_NUM_GPUS={expected_gpus}, but torch {machine.torch_version} sees no GPU: the "
            "driver may be older than its CUDA",
            "use an image with an older CUDA, or set CUDA_VISIBLE_DEVICES= (to nothing) "
            "to run on the CPU",
        )
    if machine.gpus and machine.gpus < local_world_size:
        raise ClusterError(
            f"{local_world_size} processes were started on this host, and it has {machine.gpus} "
            "visible GPUs",
            "start one process per GPU (in Slurm: --gpus-per-node, not --gpus-per-task), or set "
            "CUDA_VISIBLE_DEVICES= (to nothing) to run on the CPU",
        )
    return f"cuda:{local_rank}" if machine.gpus else "cpu"
