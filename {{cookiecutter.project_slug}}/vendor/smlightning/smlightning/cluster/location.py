"""Where this process is in the cluster: environment variables in, a Cluster out, or a ClusterError.

Processes are started by nothing, torchrun, mpirun, or smddprun under mpirun (AWS's SMDDP). Nothing
here reads ``os.environ`` or imports torch: ``session.py`` passes both in.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from smlightning.errors import UserError

SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
# AWS's page of SMDDP's instances has it for AllReduce, without further work on it: a job may name
# it, and none gets SMDDP by itself there.
OLD_SMDDP_INSTANCE = "ml.p3dn.24xlarge"
DEFAULT_PORT = 7777  # where ranks meet, as SageMaker has it


def runs_smddp(instance_type: str) -> bool:
    """Whether SMDDP's AllReduce runs there."""
    return instance_type in (*SMDDP_INSTANCES, OLD_SMDDP_INSTANCE)


@dataclass(frozen=True)
class RankVariables:
    """Names of the environment variables in which a launcher says a process's place."""

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
    """This process's place in the job.

    Ranks count from 0; rank = node_rank × local_world_size + local_rank.
    """

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
        """What messages call a rank."""
        return f"rank {rank} on host {self.hosts[rank // self.local_world_size]}"


def locate(env: Mapping[str, str], machine: Machine) -> Cluster:
    """The cluster that the environment variables describe; a pure function.

    It reads sagemaker-training's SM_* (https://github.com/aws/sagemaker-training-toolkit),
    torchrun's (https://docs.pytorch.org/docs/stable/elastic/run.html) and Open MPI's
    OMPI_COMM_WORLD_*.

    Raises:
        ClusterError: variables are missing, out of range or contradict one another.
    """
    _check_torch_version(env, machine)
    hosts = _hosts(env)
    launcher = _launcher(env)
    if launcher == "none":
        return _single_process(env, machine, hosts)
    names = LAUNCHERS[launcher]
    local_world_size = _integer(env, names.local_world_size, 1)
    world_size = _integer(env, names.world_size, 1)
    rank = _integer(env, names.rank, 0, world_size)
    local_rank = _integer(env, names.local_rank, 0, local_world_size)
    num_nodes = len(hosts) or max(1, world_size // local_world_size)
    if world_size != num_nodes * local_world_size:
        raise ClusterError(
            f"{names.world_size}={world_size} is not hosts × processes per host = "
            f"{num_nodes} × {local_world_size} (SM_HOSTS={env.get('SM_HOSTS', 'unset')})",
            f"start {names.local_world_size}={local_world_size} on every host",
        )
    if num_nodes > 1 and not hosts and not env.get("MASTER_ADDR"):
        raise ClusterError(
            f"{names.world_size}={world_size} spans {num_nodes} hosts, but MASTER_ADDR is unset",
            "set it to rank 0's host",
        )
    _check_agreement(env, launcher, hosts, rank, local_rank, local_world_size, num_nodes)
    smddp = launcher == "mpirun" and _smddp_is_configured(env, machine)
    device = _device(env, machine, local_rank, local_world_size, names.local_world_size)
    return Cluster(
        hosts=hosts or _placeholder_hosts(num_nodes),
        node_rank=rank // local_world_size,
        rank=rank,
        local_rank=local_rank,
        local_world_size=local_world_size,
        world_size=world_size,
        launcher="smddprun" if smddp else launcher,
        backend=_backend(world_size, smddp, device, machine),
        device=device,
        main_address=env.get("MASTER_ADDR") or (hosts[0] if hosts else "127.0.0.1"),
        main_port=_integer(env, "MASTER_PORT", 1, 65536, default=str(DEFAULT_PORT)),
    )


def _check_torch_version(env: Mapping[str, str], machine: Machine) -> None:
    """Whether the image's torch is the one that was imported."""
    image, imported = env.get("SM_DLC_TORCH_VERSION"), machine.torch_version
    if image and not _is_same_version(image, imported):
        raise ClusterError(
            f"SM_DLC_TORCH_VERSION={image} is the image's torch, but torch {imported} was imported"
            ": something in requirements.txt replaced it",
            "pin that package to a version that accepts the image's torch",
        )


def _is_same_version(one: str, other: str) -> bool:
    """2.5.1 and 2.5.1+cu124 are the same; 2.5.1+cu124 and 2.5.1+cpu are not."""
    version, _, build = one.partition("+")
    other_version, _, other_build = other.partition("+")
    return version == other_version and (not build or not other_build or build == other_build)


def _hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    """SM_HOSTS, a JSON list; empty outside SageMaker."""
    text = env.get("SM_HOSTS")
    if text is None:
        return ()
    try:
        hosts = json.loads(text)
    except ValueError:
        hosts = None
    is_list = isinstance(hosts, list) and len(hosts) > 0
    if not is_list or not all(isinstance(host, str) and host for host in hosts):
        raise ClusterError(
            f'SM_HOSTS={text} is no JSON list of names such as ["algo-1", "algo-2"]',
            "correct or unset it",
        )
    if len(set(hosts)) != len(hosts):
        raise ClusterError(f"SM_HOSTS={text} names a host twice", "name each once")
    current = env.get("SM_CURRENT_HOST", hosts[0])
    if current not in hosts:
        raise ClusterError(
            f"SM_CURRENT_HOST={current} is not in SM_HOSTS={text}", "set it to one of them"
        )
    return tuple(hosts)


def _launcher(env: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    for launcher in ("mpirun", "torchrun"):  # smddprun sets torchrun's variables too
        if any(name in env for name in astuple(LAUNCHERS[launcher])):
            return launcher
    return "none"


def _single_process(env: Mapping[str, str], machine: Machine, hosts: tuple[str, ...]) -> Cluster:
    if len(hosts) > 1:  # each process would believe that it is rank 0, and train alone
        raise ClusterError(
            f"SM_HOSTS={env['SM_HOSTS']} names {len(hosts)} hosts, but no launcher set RANK",
            "set distribution to torch_distributed, smddp or pytorchddp, or instance_count to 1",
        )
    return Cluster(
        hosts=hosts or _placeholder_hosts(1),
        node_rank=0,
        rank=0,
        local_rank=0,
        local_world_size=1,
        world_size=1,
        launcher="none",
        backend="none",
        device=_device(env, machine, 0, 1, ""),
        main_address="127.0.0.1",
        main_port=DEFAULT_PORT,
    )


def _placeholder_hosts(num_nodes: int) -> tuple[str, ...]:
    """Names for messages, where SM_HOSTS gives none."""
    if num_nodes == 1:
        return ("localhost",)
    return tuple(f"node-{number}" for number in range(num_nodes))


def _integer(
    env: Mapping[str, str], name: str, low: int, high: int | None = None, default: str | None = None
) -> int:
    """The variable ``name`` as a number, low ≤ number < high."""
    text = env.get(name, default)
    if text is None:
        names = {"TORCHELASTIC_RUN_ID"}
        names.update(*map(astuple, LAUNCHERS.values()))
        others = ", ".join(f"{other}={env[other]}" for other in sorted(names & set(env)))
        raise ClusterError(
            f"{name} is unset, but {others}",
            "use torchrun or mpirun, which set all, or unset these",
        )
    expected = f"a whole number from {low}" + (f" to {high - 1}" if high is not None else "")
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or not low <= int(text) < (high or 10**9):
        raise ClusterError(
            f"{name}={text} is out of range, expected {expected}", "leave it to torchrun or mpirun"
        )
    return int(text)


def _check_agreement(
    env: Mapping[str, str],
    launcher: str,
    hosts: tuple[str, ...],
    rank: int,
    local_rank: int,
    local_world_size: int,
    num_nodes: int,
) -> None:
    """Whether the other variables say the place that follows from the rank."""
    names = LAUNCHERS[launcher]
    node_rank = rank // local_world_size
    pairs: list[tuple[str, object, object]] = [  # name, its value, the value expected
        (names.local_rank, local_rank, rank % local_world_size)
    ]
    if launcher == "torchrun" and "GROUP_RANK" in env:
        pairs.append(("GROUP_RANK", _integer(env, "GROUP_RANK", 0, num_nodes), node_rank))
    # Under mpirun SM_CURRENT_HOST is the first host's on all: sshd hands it on.
    if launcher == "torchrun" and hosts and "SM_CURRENT_HOST" in env:
        pairs.append(("SM_CURRENT_HOST", env["SM_CURRENT_HOST"], hosts[node_rank]))
    if launcher == "mpirun" and "RANK" in env:  # smddprun sets it
        pairs.append(("RANK", _integer(env, "RANK", 0, local_world_size * num_nodes), rank))
    for name, value, expected in pairs:
        if value != expected:
            raise ClusterError(
                f"{name}={value} contradicts {names.rank}={rank} with {local_world_size} processes "
                f"per host, by which it is {expected}",
                "number the ranks host by host, in the order of SM_HOSTS",
            )


def _smddp_is_configured(env: Mapping[str, str], machine: Machine) -> bool:
    """Whether the job's distribution is smddp; refused where it cannot run."""
    text = env.get("SM_FRAMEWORK_PARAMS", "{}")
    try:
        params = dict(json.loads(text))
    except (TypeError, ValueError):
        raise ClusterError(
            f"SM_FRAMEWORK_PARAMS={text} is not a JSON object", "correct or unset it"
        ) from None
    if params.get("sagemaker_pytorch_ddp_enabled"):  # the toolkit looks at this one first
        return False
    if not params.get("sagemaker_distributed_dataparallel_enabled"):
        return False
    instance = env.get("SM_CURRENT_INSTANCE_TYPE", "unset")
    if not runs_smddp(instance):
        raise ClusterError(
            f"SM_CURRENT_INSTANCE_TYPE={instance} cannot run SMDDP, the job's distribution",
            f"take {' or '.join(SMDDP_INSTANCES)}, or set distribution to torch_distributed",
        )
    if not machine.has_smddp:
        raise ClusterError(
            f"SM_FRAMEWORK_PARAMS={text} enables SMDDP, but this image has no "
            "smdistributed.dataparallel",
            'set image = "smddp", or set distribution to torch_distributed',
        )
    return True


def _backend(world_size: int, smddp: bool, device: str, machine: Machine) -> str:
    if world_size == 1:
        return "none"
    if smddp:
        return "smddp"
    return "nccl" if device != "cpu" and machine.has_nccl else "gloo"


def _device(
    env: Mapping[str, str],
    machine: Machine,
    local_rank: int,
    local_world_size: int,
    variable: str,
) -> str:
    """``cuda:<local rank>`` where the host has GPUs, else ``cpu``."""
    expected_gpus = env.get("SM_NUM_GPUS", "0")
    is_hidden = "CUDA_VISIBLE_DEVICES" in env
    if expected_gpus not in ("", "0") and not machine.gpus and not is_hidden:
        raise ClusterError(
            f"SM_NUM_GPUS={expected_gpus}, but torch {machine.torch_version} sees no GPU, "
            "as with a driver older than its CUDA",
            "take an image with an older CUDA, or set CUDA_VISIBLE_DEVICES= (to nothing) "
            "to run on the CPU",
        )
    if machine.gpus and machine.gpus < local_world_size:
        raise ClusterError(
            f"{variable}={local_world_size}, but {machine.gpus} GPUs are visible",
            "start one process per GPU, or set CUDA_VISIBLE_DEVICES= (to nothing) "
            "to run on the CPU",
        )
    return f"cuda:{local_rank}" if machine.gpus else "cpu"
