"""Where am I in the cluster? Rank variables in, a Cluster out, or one sentence about what is wrong with them.

Processes are started by nothing, torchrun, mpirun, or smddprun under mpirun (AWS's SMDDP). Nothing here reads
``os.environ`` or imports torch: `ranks.py` hands both over.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.report import UserError

SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
SMDDP_IMAGE = "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"
VARIABLES = {  # launcher: rank, world size, local rank, processes per host
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
}


class ClusterError(UserError):
    """The cluster is not what its variables say, or a rank did not come or went away."""


@dataclass(frozen=True)
class Machine:
    """What this host can do, as far as the choice of device and backend needs it."""

    gpus: int = 0
    has_nccl: bool = False
    has_smddp: bool = False
    torch_version: str = ""


@dataclass(frozen=True)
class Cluster:
    """This process's place in the job. Ranks count from 0; rank = node_rank × local_world_size + local_rank."""

    hosts: tuple[str, ...]
    node_rank: int
    rank: int
    local_rank: int
    local_world_size: int  # processes on each host
    world_size: int  # processes in all
    launcher: str  # none, torchrun, mpirun, smddprun
    backend: str  # none, gloo, nccl, smddp
    device: str  # cpu, cuda:<local rank>
    main_address: str  # where the ranks meet
    main_port: int

    @property
    def num_nodes(self) -> int:
        return len(self.hosts)

    @property
    def accelerator(self) -> str:
        """Trainer's word for the kind of device."""
        return "cpu" if self.device == "cpu" else "gpu"

    def name(self, rank: int) -> str:
        """How errors call a rank."""
        return f"rank {rank} on host {self.hosts[rank // self.local_world_size]}"


def locate(env: Mapping[str, str], machine: Machine) -> Cluster:
    """The cluster that the environment variables describe; a pure function.

    Read are sagemaker-training's SM_* (https://github.com/aws/sagemaker-training-toolkit), torchrun's
    (https://docs.pytorch.org/docs/stable/elastic/run.html) and Open MPI's OMPI_COMM_WORLD_*.

    Raises:
        ClusterError: one sentence that names variable, value and cure.
    """
    image, imported = env.get("SM_DLC_TORCH_VERSION"), machine.torch_version
    if image and not _same_version(image, imported):
        raise ClusterError(
            f"SM_DLC_TORCH_VERSION={image} is the image's torch, but torch {imported} was imported; something in "
            "requirements.txt replaced it: pin that package to a version that accepts the image's torch."
        )
    hosts = _hosts(env)
    launcher = _launcher(env)
    if launcher == "none":
        if len(hosts) > 1:  # each would believe that it is rank 0, and train alone
            raise ClusterError(
                f"SM_HOSTS={env['SM_HOSTS']} names {len(hosts)} hosts, but no launcher set RANK; set distribution to "
                "torch_distributed, smddp or pytorchddp, or instance_count to 1."
            )
        return Cluster(
            hosts or ("localhost",), 0, 0, 0, 1, 1, "none", "none", _device(env, machine, 0, 1, ""), "127.0.0.1", 7777
        )
    rank_name, world_name, local_name, local_world_name = VARIABLES[launcher]
    local_world = _integer(env, local_world_name, 1)
    world = _integer(env, world_name, 1)
    rank = _integer(env, rank_name, 0, world)
    local_rank = _integer(env, local_name, 0, local_world)
    num_nodes = len(hosts) or max(1, world // local_world)
    if world != num_nodes * local_world:
        raise ClusterError(
            f"{world_name}={world} is not hosts × processes per host = {num_nodes} × {local_world} "
            f"(SM_HOSTS={env.get('SM_HOSTS', 'unset')}); start {local_world_name}={local_world} on every host."
        )
    node_rank = rank // local_world
    told: dict[str, tuple[object, object]] = {local_name: (local_rank, rank % local_world)}
    if launcher == "torchrun" and "GROUP_RANK" in env:
        told["GROUP_RANK"] = (_integer(env, "GROUP_RANK", 0, num_nodes), node_rank)
    if launcher == "torchrun" and hosts:  # under mpirun it is what sshd hands on
        told["SM_CURRENT_HOST"] = (env.get("SM_CURRENT_HOST", hosts[node_rank]), hosts[node_rank])
    if launcher == "mpirun" and "RANK" in env:  # smddprun's
        told["RANK"] = (_integer(env, "RANK", 0, world), rank)
    for name, (found, expected) in told.items():
        if found != expected:
            raise ClusterError(
                f"{name}={found} contradicts {rank_name}={rank} with {local_world} processes per host, by which it is "
                f"{expected}; number the ranks host by host, in the order of SM_HOSTS."
            )
    if num_nodes > 1 and not hosts and not env.get("MASTER_ADDR"):
        raise ClusterError(
            f"{world_name}={world} spans {num_nodes} hosts, but MASTER_ADDR is unset; set it to rank 0's host."
        )
    smddp = launcher == "mpirun" and _asked_for_smddp(env, machine)
    device = _device(env, machine, local_rank, local_world, local_world_name)
    native = "nccl" if device != "cpu" and machine.has_nccl else "gloo"
    return Cluster(
        hosts=hosts or (("localhost",) if num_nodes == 1 else tuple(f"node-{i}" for i in range(num_nodes))),
        node_rank=node_rank,
        rank=rank,
        local_rank=local_rank,
        local_world_size=local_world,
        world_size=world,
        launcher="smddprun" if smddp else launcher,
        backend="none" if world == 1 else "smddp" if smddp else native,
        device=device,
        main_address=env.get("MASTER_ADDR") or (hosts[0] if hosts else "127.0.0.1"),
        main_port=_integer(env, "MASTER_PORT", 1, 65536, default="7777"),
    )


def _launcher(env: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if any(name in env for name in VARIABLES["mpirun"]):
        return "mpirun"
    return "torchrun" if any(name in env for name in VARIABLES["torchrun"]) else "none"


def _hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    """SM_HOSTS, a JSON list; empty outside SageMaker."""
    text = env.get("SM_HOSTS")
    if text is None:
        return ()
    try:
        hosts = json.loads(text)
    except ValueError:
        hosts = None
    if not (isinstance(hosts, list) and hosts and all(isinstance(host, str) and host for host in hosts)):
        raise ClusterError(f'SM_HOSTS={text} is no JSON list of names such as ["algo-1", "algo-2"]; fix or unset it.')
    if len(set(hosts)) != len(hosts):
        raise ClusterError(f"SM_HOSTS={text} names a host twice; name each once.")
    if (current := env.get("SM_CURRENT_HOST", hosts[0])) not in hosts:
        raise ClusterError(f"SM_CURRENT_HOST={current} is not in SM_HOSTS={text}; set it to one of them.")
    return tuple(hosts)


def _integer(env: Mapping[str, str], name: str, low: int, high: int | None = None, default: str | None = None) -> int:
    """Variable `name`, low ≤ value < high."""
    text = env.get(name, default)
    if text is None:
        known = {"TORCHELASTIC_RUN_ID", *VARIABLES["torchrun"], *VARIABLES["mpirun"]} & set(env)
        others = ", ".join(f"{other}={env[other]}" for other in sorted(known))
        raise ClusterError(f"{name} is unset, but {others}; torchrun and mpirun set them all: use one, or unset these.")
    wanted = f"a whole number from {low}" + (f" to {high - 1}" if high is not None else "")
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or not low <= int(text) < (high or 10**9):
        raise ClusterError(f"{name}={text} is out of range, expected {wanted}; leave it to torchrun or mpirun.")
    return int(text)


def _same_version(one: str, other: str) -> bool:
    """2.5.1 and 2.5.1+cu124 are the same; 2.5.1+cu124 and 2.5.1+cpu are not."""
    (version, _, build), (other_version, _, other_build) = one.partition("+"), other.partition("+")
    return version == other_version and (not build or not other_build or build == other_build)


def _asked_for_smddp(env: Mapping[str, str], machine: Machine) -> bool:
    text = env.get("SM_FRAMEWORK_PARAMS", "{}")
    try:
        params = dict(json.loads(text))
    except (TypeError, ValueError):
        raise ClusterError(f"SM_FRAMEWORK_PARAMS={text} is not a JSON object; fix or unset it.") from None
    other = params.get("sagemaker_pytorch_ddp_enabled")  # the toolkit looks at this one first
    if other or not params.get("sagemaker_distributed_dataparallel_enabled"):
        return False
    instance = env.get("SM_CURRENT_INSTANCE_TYPE", "unset")
    if instance not in SMDDP_INSTANCES:
        raise ClusterError(
            f"SM_CURRENT_INSTANCE_TYPE={instance} cannot run SMDDP, which distribution asks for; "
            f"take {' or '.join(SMDDP_INSTANCES)}, or set distribution to torch_distributed."
        )
    if not machine.has_smddp:
        raise ClusterError(
            f"SM_FRAMEWORK_PARAMS={text} asks for SMDDP, but this image has no "
            f"smdistributed.dataparallel; take image {SMDDP_IMAGE}, or set distribution to torch_distributed."
        )
    return True


def _device(env: Mapping[str, str], machine: Machine, local_rank: int, local_world_size: int, name: str) -> str:
    gpus = env.get("SM_NUM_GPUS", "0")
    if gpus not in ("", "0") and not machine.gpus and "CUDA_VISIBLE_DEVICES" not in env:
        raise ClusterError(
            f"SM_NUM_GPUS={gpus}, but torch {machine.torch_version} sees no GPU, as with a driver older than its CUDA; "
            "take an image with an older CUDA, or set CUDA_VISIBLE_DEVICES= (to nothing) to run on the CPU."
        )
    if machine.gpus and machine.gpus < local_world_size:
        raise ClusterError(
            f"{name}={local_world_size}, but {machine.gpus} GPUs are visible; start one process per GPU, "
            "or set CUDA_VISIBLE_DEVICES= (to nothing) to run on the CPU."
        )
    return f"cuda:{local_rank}" if machine.gpus else "cpu"
