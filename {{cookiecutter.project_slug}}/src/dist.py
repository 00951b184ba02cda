"""Where am I in the cluster? The only reader of rank variables, and what Lightning has to know about them.

    with dist.session() as cluster:  # the ranks meet, rank 0 prints who came
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = Trainer(strategy=strategy, devices=devices, num_nodes=num_nodes, accelerator=cluster.accelerator)

Four ways to start a process are known: none, torchrun, mpirun, and smddprun under mpirun (AWS's SMDDP).
:func:`locate` turns their variables into a :class:`Cluster` or refuses them; nothing is detected by Lightning.
"""

import importlib.util
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import MethodType
from typing import Any

import pytorch_lightning
import torch
import torch.distributed
from lightning_fabric.plugins import ClusterEnvironment
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from report import UserError

SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
SMDDP_IMAGE = "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"


class ClusterError(UserError):
    """The environment contradicts itself or asks for what is not there."""


@dataclass(frozen=True)
class Machine:
    """What this host can do, as far as the choice of backend and device needs it."""

    gpus: int = 0
    has_nccl: bool = False
    has_smddp: bool = False
    torch_version: str = torch.__version__

    @classmethod
    def here(cls) -> "Machine":
        has_smddp = bool(importlib.util.find_spec("smdistributed")) and bool(
            importlib.util.find_spec("smdistributed.dataparallel")
        )
        return cls(torch.cuda.device_count(), torch.distributed.is_nccl_available(), has_smddp)


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
    main_address: str  # where rank 0 listens while the ranks meet
    main_port: int

    @property
    def num_nodes(self) -> int:
        return len(self.hosts)

    @property
    def accelerator(self) -> str:
        return "cpu" if self.device == "cpu" else "gpu"

    def host_of(self, rank: int) -> str:
        return self.hosts[rank // self.local_world_size]


def locate(env: Mapping[str, str], machine: Machine) -> Cluster:
    """The cluster that the environment variables describe; a pure function.

    Variables: sagemaker-training's ``SM_*`` (https://github.com/aws/sagemaker-training-toolkit), torchrun's
    (https://docs.pytorch.org/docs/stable/elastic/run.html) and Open MPI's ``OMPI_COMM_WORLD_*``.

    Raises:
        ClusterError: one sentence that names variable, value and cure.
    """
    image_torch = env.get("SM_DLC_TORCH_VERSION", machine.torch_version)
    if not _same_version(image_torch, machine.torch_version):
        raise ClusterError(
            f"SM_DLC_TORCH_VERSION={image_torch} is the image's torch, but {machine.torch_version} was imported; "
            "something in requirements.txt replaced it: pin that package to a version that accepts the image's torch."
        )
    hosts = _hosts(env)
    if any(name.startswith("OMPI_COMM_WORLD_") for name in env) and "TORCHELASTIC_RUN_ID" not in env:
        launcher, prefix = "mpirun", "OMPI_COMM_WORLD_"
        names = {"rank": "RANK", "world": "SIZE", "local": "LOCAL_RANK", "local_world": "LOCAL_SIZE"}
    elif any(name in env for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")):
        launcher, prefix = "torchrun", ""
        names = {
            "rank": "RANK",
            "world": "WORLD_SIZE",
            "local": "LOCAL_RANK",
            "local_world": "LOCAL_WORLD_SIZE",
        }
    else:
        return _alone(env, hosts, machine)
    names = {key: prefix + name for key, name in names.items()}
    local_world = _integer(env, names["local_world"], 1)
    world = _integer(env, names["world"], 1)
    rank = _integer(env, names["rank"], 0, world)
    local_rank = _integer(env, names["local"], 0, local_world)
    num_nodes = len(hosts) or max(1, world // local_world)
    if world != num_nodes * local_world:
        raise ClusterError(
            f"{names['world']}={world} is not hosts × processes per host = {num_nodes} × {local_world} "
            f"(SM_HOSTS={env.get('SM_HOSTS', 'unset')}, {names['local_world']}={local_world}); "
            "start the same number of processes on every host."
        )
    # Under mpirun SM_CURRENT_HOST and GROUP_RANK can be the leader's on every rank: the ranks alone tell the node.
    node_rank = rank // local_world
    told: dict[str, tuple[object, object]] = {names["local"]: (local_rank, rank % local_world)}
    if launcher == "torchrun" and "GROUP_RANK" in env:
        told["GROUP_RANK"] = (_integer(env, "GROUP_RANK", 0, num_nodes), node_rank)
    if launcher == "torchrun" and hosts and "SM_CURRENT_HOST" in env:
        told["SM_CURRENT_HOST"] = (env["SM_CURRENT_HOST"], hosts[node_rank])
    if launcher == "mpirun" and "RANK" in env:
        told["RANK"] = (_integer(env, "RANK", 0, world), rank)
    for name, (found, expected) in told.items():
        if found != expected:
            raise ClusterError(
                f"{name}={found} contradicts {names['rank']}={rank} with {local_world} processes per host, "
                f"by which it is {expected}; number the ranks host by host, in the order of SM_HOSTS."
            )
    if num_nodes > 1 and not hosts and "MASTER_ADDR" not in env:
        raise ClusterError(
            f"{names['world']}={world} spans {num_nodes} hosts, but MASTER_ADDR is unset; set it to the host of rank 0."
        )
    smddp = launcher == "mpirun" and _asked_for_smddp(env)
    if smddp:
        _check_smddp(env, machine)
        launcher = "smddprun"
    device = _device(machine, local_rank, local_world, names["local_world"])
    native = "nccl" if device != "cpu" and machine.has_nccl else "gloo"
    return Cluster(
        hosts=hosts or (("localhost",) if num_nodes == 1 else tuple(f"node-{i}" for i in range(num_nodes))),
        node_rank=node_rank,
        rank=rank,
        local_rank=local_rank,
        local_world_size=local_world,
        world_size=world,
        launcher=launcher,
        backend="none" if world == 1 else "smddp" if smddp else native,
        device=device,
        main_address=env.get("MASTER_ADDR") or (hosts[0] if hosts else "127.0.0.1"),
        main_port=_integer(env, "MASTER_PORT", 1, 65536, default="7777"),
    )


def _alone(env: Mapping[str, str], hosts: tuple[str, ...], machine: Machine) -> Cluster:
    """One process without a launcher. On several hosts each would believe it is rank 0 and train by itself."""
    if len(hosts) > 1:
        raise ClusterError(
            f"SM_HOSTS={env['SM_HOSTS']} names {len(hosts)} hosts, but no launcher set RANK; "
            'set distribution to "torch_distributed", "smddp" or "pytorchddp", or instance_count to 1.'
        )
    device = _device(machine, 0, 1, "")
    return Cluster(hosts or ("localhost",), 0, 0, 0, 1, 1, "none", "none", device, "127.0.0.1", 7777)


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
        raise ClusterError(
            f'SM_HOSTS={text} is not a JSON list of names such as ["algo-1", "algo-2"]; unset or mend it.'
        )
    if len(set(hosts)) != len(hosts):
        raise ClusterError(f"SM_HOSTS={text} names a host twice; name each host once.")
    current = env.get("SM_CURRENT_HOST", hosts[0])
    if current not in hosts:
        raise ClusterError(f"SM_CURRENT_HOST={current} is not in SM_HOSTS={text}; set it to one of them.")
    return tuple(hosts)


def _integer(
    env: Mapping[str, str], name: str, low: int, high: int | None = None, default: str | None = None
) -> int:
    """Variable `name`, low ≤ value < high."""
    text = env.get(name, default)
    if text is None:
        present = [
            f"{key}={env[key]}"
            for key in sorted(env)
            if key.endswith(("RANK", "WORLD_SIZE", "COMM_WORLD_SIZE"))
        ]
        raise ClusterError(
            f"{name} is unset although {', '.join(present) or 'TORCHELASTIC_RUN_ID'} is set; "
            "start with torchrun or mpirun, which set all of them, or unset the rest to run one process."
        )
    try:
        value = int(text)
    except ValueError:
        raise ClusterError(f"{name}={text} is not a whole number; let torchrun or mpirun set it.") from None
    if value < low or (high is not None and value >= high):
        wanted = f"at least {low}" if high is None else f"between {low} and {high - 1}"
        raise ClusterError(
            f"{name}={value} is out of range, expected {wanted}; let torchrun or mpirun set it."
        )
    return value


def _same_version(one: str, other: str) -> bool:
    """2.5.1 and 2.5.1+cu124 are the same; 2.5.1+cu124 and 2.5.1+cpu are not."""
    (one, _, local), (other, _, other_local) = one.partition("+"), other.partition("+")
    return one == other and (not local or not other_local or local == other_local)


def _asked_for_smddp(env: Mapping[str, str]) -> bool:
    try:
        params = json.loads(env.get("SM_FRAMEWORK_PARAMS", "{}"))
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise ClusterError(
            f"SM_FRAMEWORK_PARAMS={env['SM_FRAMEWORK_PARAMS']} is not a JSON object; unset or mend it."
        )
    native = params.get("sagemaker_pytorch_ddp_enabled", False)  # the toolkit looks at this one first
    return bool(params.get("sagemaker_distributed_dataparallel_enabled", False)) and not native


def _check_smddp(env: Mapping[str, str], machine: Machine) -> None:
    instance = env.get("SM_CURRENT_INSTANCE_TYPE", "unset")
    other = 'or set distribution to "torch_distributed"'
    if instance not in SMDDP_INSTANCES:
        raise ClusterError(
            f"SM_CURRENT_INSTANCE_TYPE={instance} cannot run SMDDP, which distribution asked for; "
            f"take one of {', '.join(SMDDP_INSTANCES)}, {other}."
        )
    if not machine.has_smddp:
        raise ClusterError(
            f"SM_FRAMEWORK_PARAMS={env['SM_FRAMEWORK_PARAMS']} asks for SMDDP, but this image has no "
            f"smdistributed.dataparallel; take the image {SMDDP_IMAGE}, {other}."
        )


def _device(machine: Machine, local_rank: int, local_world_size: int, name: str) -> str:
    if machine.gpus == 0:
        return "cpu"
    if machine.gpus < local_world_size:
        raise ClusterError(
            f"{name}={local_world_size} but {machine.gpus} GPUs are visible; start one process per GPU, "
            "or set CUDA_VISIBLE_DEVICES to nothing to run on the CPU."
        )
    return f"cuda:{local_rank}"


@cache
def cluster() -> Cluster:
    """This process's cluster, read once: Lightning's own environments delete rank variables at teardown."""
    return locate(os.environ, Machine.here())


def get_global_rank() -> int:
    """Rank among all processes of the job, 0 ≤ rank < world size."""
    return cluster().rank


def get_local_rank() -> int:
    """Rank among the processes of this host."""
    return cluster().local_rank


def get_initialization_info() -> tuple[Strategy, int, int]:
    """``(strategy, devices, num_nodes)`` for ``Trainer``; ``devices`` counts one host's."""
    here = cluster()
    if here.world_size == 1:
        return OneProcess(here), 1, 1
    kind = SmddpStrategy if here.backend == "smddp" else ClusterStrategy
    return kind(here), here.local_world_size, here.num_nodes


class LauncherEnvironment(ClusterEnvironment):
    """The cluster as Lightning asks for it: true node rank, nothing read late, nothing lost at teardown.

    Under mpirun Lightning would choose its MPIEnvironment and freeze (Lightning#20049); AWS's LightningEnvironment
    snippet says node rank 0 on every node and forgets the world size after ``fit``.
    """

    creates_processes_externally = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def main_address(self) -> str:
        return self._cluster.main_address

    @property
    def main_port(self) -> int:
        return self._cluster.main_port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._cluster.world_size

    def global_rank(self) -> int:
        return self._cluster.rank

    def local_rank(self) -> int:
        return self._cluster.local_rank

    def node_rank(self) -> int:
        return self._cluster.node_rank

    def set_world_size(self, size: int) -> None:
        """Lightning computes it again, from Trainer's arguments: they have to agree with the launcher."""
        if size != self._cluster.world_size:
            raise ClusterError(
                f"Trainer's devices × num_nodes = {size}, but the launcher started {self._cluster.world_size} processes; "
                "pass on both numbers of get_initialization_info()."
            )

    def set_global_rank(self, rank: int) -> None:
        pass  # follows from what set_world_size checks


class OneProcess(SingleDeviceStrategy):
    """One device. It names its cluster environment only to keep Lightning from looking for one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(device=cluster.device)
        self.cluster_environment = LauncherEnvironment(cluster)


class ClusterStrategy(DDPStrategy):
    """DistributedDataParallel over NCCL or gloo, with an all-reduce verified before the first step."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._proven = False
        super().__init__(
            cluster_environment=LauncherEnvironment(cluster),
            process_group_backend=cluster.backend,
            gradient_as_bucket_view=True,  # gradients live in the buckets: one copy and its memory less
        )

    def setup_environment(self) -> None:
        super().setup_environment()
        if not self._proven:
            prove_all_reduce(self._cluster)
            self._proven = True


class SmddpStrategy(ClusterStrategy):
    """DistributedDataParallel over AWS's SMDDP, kept to what its documentation allows in a DDP job.

    No other group or backend beside it, only SUM, no device_ids in barriers. Lightning 2.6.6 breaks each of these:
    a gloo group around ``prepare_data``, AVG in ``self.log(sync_dist=True)`` (Lightning#20409), ``device_id``.
    """

    def setup_environment(self) -> None:
        self._prepare_data()
        if not torch.distributed.is_initialized():
            import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend

            if self.root_device.type == "cuda":
                torch.cuda.set_device(self.root_device)
            os.environ |= {
                "MASTER_ADDR": self._cluster.main_address,
                "MASTER_PORT": str(self._cluster.main_port),
            }
            torch.distributed.init_process_group(
                "smddp", rank=self.global_rank, world_size=self.world_size, timeout=self._timeout
            )
        super().setup_environment()  # finds the group and leaves it as it is

    def _prepare_data(self) -> None:
        """Prepare data here, before Lightning's data connector would, and leave it nothing to do.

        The connector opens a gloo group whenever a group exists and ``prepare_data`` is overridden. Before the first
        run the other ranks wait in the rendezvous; in a later one (``test`` after ``fit``) the same data is ready.
        """
        module = self.lightning_module
        assert module is not None
        datamodule: Any = getattr(module.trainer, "datamodule", None)
        owners: Any = ((datamodule, LightningDataModule), (module, LightningModule))
        for owner, base in owners:
            if owner is None or not is_overridden("prepare_data", owner):
                continue
            if self.local_rank == 0 and (owner.prepare_data_per_node or self.node_rank == 0):
                owner.prepare_data()
            owner.prepare_data = MethodType(base.prepare_data, owner)  # nothing left to do
            self.barrier()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Sum, then divide where the mean was asked for."""
        mean = reduce_op in ("mean", "avg", torch.distributed.ReduceOp.AVG)
        result = super().reduce(tensor, group, "sum" if mean else reduce_op)
        if mean and isinstance(result, Tensor):
            result.copy_(result / self.world_size)
        return result


_stores: list[torch.distributed.TCPStore] = []  # where the ranks of this session met; empty with one process


@contextmanager
def session(meet_seconds: float | None = None) -> Iterator[Cluster]:
    """Everything between the first rank variable and the end of the process group.

    Args:
        meet_seconds: how long to wait for every rank; None: the variable DIST_MEET_SECONDS, else 180.

    Raises:
        ClusterError: the environment is refused, or a rank did not come in time; names its rank and host.
    """
    cluster.cache_clear()
    here = cluster()
    vars(rank_zero_only)["rank"] = (
        here.rank
    )  # Lightning guesses it from variables that plain mpirun does not set
    try:
        if here.world_size > 1:
            limit = os.environ.get("DIST_MEET_SECONDS", "180") if meet_seconds is None else meet_seconds
            _stores.append(_meet(here, _seconds(limit)))  # kept: rank 0 listens until the end
        else:
            _print_table([_card(here)])
        yield here
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        _stores.clear()


def _seconds(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise ClusterError(
            f"DIST_MEET_SECONDS={text} is not a time; set it to a number of seconds such as 180."
        )
    return value


def _meet(here: Cluster, seconds: float) -> torch.distributed.TCPStore:
    """Every rank lays its card on rank 0's store and waits for all others'; no process group is needed.

    Under torchrun the agent of the first host keeps the store (TORCHELASTIC_USE_AGENT_STORE), else rank 0 does; the
    process group's own rendezvous then shares it (multi_tenant).
    """
    late = f"within {seconds:g} s; see whether its log ends early and whether the security group lets hosts reach each other"
    deadline = time.monotonic() + seconds
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = torch.distributed.TCPStore(
            here.main_address,
            here.main_port,
            is_master=here.rank == 0 and not agent,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error):
            raise ClusterError(
                f"MASTER_PORT={here.main_port} is in use on {here.main_address}; end that process or choose another port."
            ) from error
        raise ClusterError(
            f"rank 0 on host {here.host_of(0)} did not answer at {here.main_address}:{here.main_port} {late}."
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    keys = [f"meet/{attempt}/{rank}" for rank in range(here.world_size)]
    verdict = f"meet/{attempt}/missing"
    try:
        store.set(keys[here.rank], json.dumps(_card(here)))
        while not store.check(keys):
            if time.monotonic() > deadline and not store.check([verdict]):
                ranks = [rank for rank, key in enumerate(keys) if not store.check([key])]
                store.set(verdict, ", ".join(f"rank {rank} on host {here.host_of(rank)}" for rank in ranks))
            if store.check([verdict]):
                missing = store.get(verdict).decode()
                time.sleep(1)  # so that all others read it before rank 0 goes and takes the store along
                raise ClusterError(f"{missing} did not come {late}.")
            time.sleep(0.1)
        cards = [json.loads(store.get(key)) for key in keys]
    except torch.distributed.DistError as error:
        raise ClusterError(
            f"rank 0 on host {here.host_of(0)} left while the ranks met; see the end of its log."
        ) from error
    for card in cards:
        if card["libraries"] != cards[0]["libraries"]:
            raise ClusterError(
                f"rank {card['rank']} on {card['host']} has {card['libraries']}, but rank 0 on {cards[0]['host']} has "
                f"{cards[0]['libraries']}; use the same image and pin the versions in requirements.txt."
            )
    if here.rank == 0:
        _print_table(cards)
    return store


def _card(here: Cluster) -> dict[str, str]:
    """What the table at the start of a job says about this rank."""
    device = here.device
    if device != "cpu":
        device += f" {torch.cuda.get_device_name(device)}"
    shm = "none"
    if os.path.isdir("/dev/shm"):  # too small a one kills loader workers with a bus error
        shm = f"{shutil.disk_usage('/dev/shm').total / 2**30:.1f} GiB"
    return {
        "host": f"{here.hosts[here.node_rank]} ({socket.gethostname()})",
        "node": str(here.node_rank),
        "rank": f"{here.rank}/{here.world_size}",
        "local rank": f"{here.local_rank}/{here.local_world_size}",
        "device": device,
        "backend": here.backend,
        "/dev/shm": shm,
        "libraries": f"torch {torch.__version__}, lightning {pytorch_lightning.__version__}",
    }


def _print_table(cards: list[dict[str, str]]) -> None:
    """A row per rank, columns as wide as their content, the libraries once below."""
    columns = [name for name in cards[0] if name != "libraries"]
    rows = [columns, *([card[name] for name in columns] for card in cards)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{cards[0]['libraries']}, started by {cluster().launcher}", flush=True)


def prove_all_reduce(here: Cluster) -> None:
    """Sum numbers whose sum is known; rank 0 reports the bandwidth, 2 (n−1)/n × bytes / second (nccl-tests' "busbw").

    Raises:
        ClusterError: the sum is wrong on this rank.
    """
    n = here.world_size
    buffer = torch.empty(2**20 if here.device == "cpu" else 2**24, device=here.device)  # 4 or 64 MiB
    seconds = []
    for _ in range(3):
        buffer.fill_(here.rank + 1)
        start = time.perf_counter()
        torch.distributed.all_reduce(buffer)
        low, high = buffer.min().item(), buffer.max().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        if low != n * (n + 1) // 2 or high != low:
            raise ClusterError(
                f"all-reduce over {n} ranks gave {low} to {high} on rank {here.rank}, expected {n * (n + 1) // 2}; "
                f"{here.backend} does not work between these hosts: try another backend or image."
            )
    if here.rank == 0:
        rate = 2 * (n - 1) / n * buffer.nbytes / min(seconds) / 1e9
        print(
            f"all-reduce over {n} ranks verified, {rate:.2f} GB/s bus bandwidth with {here.backend}",
            flush=True,
        )


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of `tensor` over all ranks, on its own device; `tensor` itself where there is no process group.

    A sum is the one reduction that every backend has: SMDDP refuses the rest (Lightning#20409).
    """
    if not torch.distributed.is_initialized():
        return tensor
    total = tensor.detach().clone().to(cluster().device)
    torch.distributed.all_reduce(total)
    return total.to(tensor.device)


def from_rank_0(key: str, make: Callable[[], str]) -> str:
    """What `make` returns on rank 0, on every rank; waits for rank 0, and needs no process group.

    Args:
        key: a name for it, used once in a session.
    """
    if not _stores:
        return make()
    key = f"{key}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if get_global_rank() == 0:
        _stores[0].set(key, make())
    return _stores[0].get(key).decode()


def agree(flag: bool) -> bool:
    """Whether the flag is set on any rank; every rank has to ask, and all get the same answer."""
    return bool(all_sum(torch.tensor(int(flag))) > 0)
