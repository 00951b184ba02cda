"""What Lightning has to know about the cluster, and what the ranks say to each other.

    with dist.session() as cluster:  # the ranks meet; rank 0 prints who came
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = Trainer(strategy=strategy, devices=devices, num_nodes=num_nodes, accelerator=cluster.accelerator)

The only reader of rank variables, through :func:`cluster.locate`; Lightning is told everything and detects nothing.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
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

import stop
from cluster import Cluster, ClusterError, Machine, locate
from report import UserError, write_failure


@cache
def cluster() -> Cluster:
    """This process's cluster, read once: Lightning's own environments delete rank variables at teardown."""
    has_smddp = importlib.util.find_spec("smdistributed") and importlib.util.find_spec("smdistributed.dataparallel")
    machine = Machine(
        gpus=torch.cuda.device_count(),
        has_nccl=torch.distributed.is_nccl_available(),
        has_smddp=bool(has_smddp),
        torch_version=torch.__version__,
    )
    return locate(os.environ, machine)


def get_global_rank() -> int:
    """Rank among all processes of the job, 0 ≤ rank < world size."""
    return cluster().rank


def get_local_rank() -> int:
    """Rank among the processes of this host."""
    return cluster().local_rank


def get_initialization_info() -> tuple[Strategy, int, int]:
    """``(strategy, devices, num_nodes)`` for ``Trainer``; ``devices`` counts one host's."""
    here = cluster()
    kind = OneProcess if here.world_size == 1 else SmddpStrategy if here.backend == "smddp" else ClusterStrategy
    return kind(here), here.local_world_size, here.num_nodes


class LauncherEnvironment(ClusterEnvironment):
    """The cluster in Lightning's terms: the true node rank, nothing read late, nothing lost at teardown.

    Under mpirun Lightning would take its MPIEnvironment and freeze (Lightning#20049); the LightningEnvironment of AWS's
    snippet has node rank 0 on every node and forgets the world size after ``fit``.
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
        """Lightning multiplies Trainer's arguments: they have to agree with the launcher."""
        if size != self._cluster.world_size:
            raise ClusterError(
                f"Trainer(devices, num_nodes) makes {size} processes, but {self._cluster.world_size} were started; "
                "pass on what get_initialization_info() returns."
            )

    def set_global_rank(self, rank: int) -> None:
        pass  # follows from what set_world_size checks


class OneProcess(SingleDeviceStrategy):
    """One device. It names a cluster environment only to keep Lightning from looking for one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(device=cluster.device)
        self.cluster_environment = LauncherEnvironment(cluster)


class ClusterStrategy(DDPStrategy):
    """DistributedDataParallel over NCCL or gloo, with an all-reduce verified before the first step."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(
            cluster_environment=LauncherEnvironment(cluster),
            process_group_backend=cluster.backend,
            gradient_as_bucket_view=True,  # gradients live in the buckets: one copy of them less
        )
        self._verified = False

    def setup_environment(self) -> None:
        super().setup_environment()
        if not self._verified:
            verify_all_reduce(self.global_rank, self.world_size, self.root_device)
            self._verified = True


class SmddpStrategy(ClusterStrategy):
    """DistributedDataParallel over AWS's SMDDP, kept to what its documentation allows in a DDP job.

    That is: no other group or backend beside it, SUM only, no device_ids in barriers. Lightning 2.6.6 breaks it with a
    gloo group around ``prepare_data``, AVG in ``self.log(sync_dist=True)`` (Lightning#20409), and ``device_id``.
    """

    def setup_environment(self) -> None:
        self._prepare_data()
        if not torch.distributed.is_initialized():
            import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend

            if self.root_device.type == "cuda":
                torch.cuda.set_device(self.root_device)
            where: Any = self.cluster_environment
            os.environ |= {"MASTER_ADDR": where.main_address, "MASTER_PORT": str(where.main_port)}
            torch.distributed.init_process_group(
                "smddp", rank=self.global_rank, world_size=self.world_size, timeout=self._timeout
            )
        super().setup_environment()  # finds the group and leaves it as it is

    def _prepare_data(self) -> None:
        """Prepare data here, just before Lightning's data connector would, and leave it nothing to do.

        The connector opens a gloo group when there is a group already and ``prepare_data`` is overridden. Before the
        first run the other ranks wait in the rendezvous; in a later one, ``test`` after ``fit``, the data is ready.
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
            owner.prepare_data = MethodType(base.prepare_data, owner)
            self.barrier()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Sum, then divide where the mean was asked for."""
        mean = reduce_op in ("mean", "avg", torch.distributed.ReduceOp.AVG)
        result = super().reduce(tensor, group, "sum" if mean else reduce_op)
        return result.copy_(result / self.world_size) if mean and isinstance(result, Tensor) else result


TOLD_TO_STOP, ENDED_WELL = "told to stop", "ended well"
_store: torch.distributed.Store | None = None  # where the ranks of this session met; None with one process


@contextlib.contextmanager
def session(meet_seconds: float | None = None) -> Iterator[Cluster]:
    """From the first rank variable to the end of the process group.

    An error that ends it is told in one sentence in SageMaker's failure file, on every host and with the rank and host
    that began it: a rank that only lost another one says so instead of its own stack trace.

    Args:
        meet_seconds: how long to wait for every rank; None: the variable DIST_MEET_SECONDS, else 180.

    Raises:
        ClusterError: the environment is refused, or a rank did not come in time or went away.
    """
    global _store
    cluster.cache_clear()
    here = None
    try:
        here = cluster()
        rank_zero_only.rank = here.rank  # type: ignore[attr-defined]  # plain mpirun sets nothing Lightning guesses by
        if here.world_size > 1:
            _store = _meet(here, _seconds(meet_seconds or os.environ.get("DIST_MEET_SECONDS", "180")))
        else:
            _print_table([_card(here)], here.launcher)
        yield here
        if _store:
            _end_together(here)
    except stop.Stopped:
        _tell_of_stop(here)
        raise
    except Exception as error:
        if stop.leaving():
            _tell_of_stop(here)
            raise stop.Stopped from None
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher that ends the rest of us leaves time to say why
        traceback.clear_frames(error.__traceback__)  # they hold the group, whose end wakes ranks that wait for this one
        _end_group()
        cause = _cause(here, error) if here else str(error)
        if cause == TOLD_TO_STOP:
            raise stop.Stopped from None
        write_failure(cause)
        if here and _lost_a_rank(error):
            raise ClusterError(f"{here.name(here.rank)} had to end: {cause}") from None
        if re.search("No space left on device|Disk quota exceeded", str(error)):
            raise UserError(f"{cause}; free some space and start the same command again.") from None
        raise
    finally:
        _end_group()
        _store = None


def _tell_of_stop(here: Cluster | None) -> None:
    """So that ranks which lose this one stop as well."""
    if here and _store:
        with contextlib.suppress(torch.distributed.DistError):
            _store.set(f"end/{here.rank}", TOLD_TO_STOP)
            time.sleep(0.5 * (here.rank == 0))  # which may keep the store, and they look every 0.1 s


def _end_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _seconds(text: str | float) -> float:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", str(text)) or not 0 < float(text) <= 86400:
        raise ClusterError(f"DIST_MEET_SECONDS={text} is no time to wait; set it to seconds such as 180.")
    return float(text)


def _meet(here: Cluster, seconds: float) -> torch.distributed.Store:
    """Every rank lays its card on a store and waits for all others'; this needs no process group.

    Under torchrun the first host's agent keeps the store (TORCHELASTIC_USE_AGENT_STORE), else rank 0 does, and the
    rendezvous of the process group shares it (multi_tenant).
    """
    late = f"within {seconds:g} s; see its log, and whether the security group lets the hosts reach each other"
    deadline = time.monotonic() + seconds
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    keeper = here.rank == 0 and not agent
    address = f"{here.main_address}:{here.main_port}"
    while not keeper and not _answers(here.main_address, here.main_port):  # TCPStore would wait longer than it is told
        if time.monotonic() > deadline:
            raise ClusterError(f"{here.name(0)} did not come and answer at {address} {late}.")
        time.sleep(0.2)
    try:
        server = torch.distributed.TCPStore(
            here.main_address,
            here.main_port,
            is_master=keeper,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        if re.search("EADDRINUSE|already in use", str(error)):
            raise ClusterError(f"MASTER_PORT={here.main_port} is taken on {address}; end what listens there.") from None
        raise ClusterError(f"{here.name(0)} did not come and answer at {address} {late}.") from None
    store = torch.distributed.PrefixStore(_attempt(), server)
    keys = [f"meet/{rank}" for rank in range(here.world_size)]
    try:
        store.set(keys[here.rank], json.dumps(_card(here)))
        while not store.check(keys):
            if time.monotonic() > deadline and not store.check(["meet/missing"]):
                missing = [here.name(rank) for rank, key in enumerate(keys) if not store.check([key])]
                store.set("meet/missing", ", ".join(missing))
            if store.check(["meet/missing"]):
                text = store.get("meet/missing").decode()
                time.sleep(1)  # for the others to read it, before rank 0 goes and takes the store along
                raise ClusterError(f"{text} did not come {late}.")
            time.sleep(0.1)
        cards = [json.loads(store.get(key)) for key in keys]
        read = store.add("meet/read", 1)
        while keeper and read < here.world_size and time.monotonic() < deadline:  # or it could take the store along
            time.sleep(0.05)
            read = store.add("meet/read", 0)
    except torch.distributed.DistError:
        raise ClusterError(f"{here.name(0)} left while the ranks met; see its log.") from None
    for rank, card in enumerate(cards):
        if card["libraries"] != cards[0]["libraries"]:
            raise ClusterError(
                f"{here.name(rank)} has {card['libraries']}, but rank 0 has {cards[0]['libraries']}; "
                "use one image, and pin the versions in requirements.txt."
            )
    if here.rank == 0:
        _print_table(cards, here.launcher)
    return store


def _attempt() -> str:
    """Goes before every key: torchrun's agent keeps the store, with what was said there, from a restart to the next."""
    return f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def _card(here: Cluster) -> dict[str, str]:
    """What the table at the start of a job says about this rank."""
    gpu = "" if here.device == "cpu" else f" {torch.cuda.get_device_name(here.device)}"
    shm = Path("/dev/shm")  # noqa: S108  too little kills loader workers with a bus error (sagemaker-python-sdk#5592)
    return {
        "host": f"{here.hosts[here.node_rank]} ({socket.gethostname()})",
        "node": str(here.node_rank),
        "rank": f"{here.rank}/{here.world_size}",
        "local rank": f"{here.local_rank}/{here.local_world_size}",
        "device": here.device + gpu,
        "backend": here.backend,
        "shared memory": f"{shutil.disk_usage(shm).total / 2**30:.1f} GiB" if shm.is_dir() else "none",
        "libraries": f"torch {torch.__version__}, lightning {pytorch_lightning.__version__}",
    }


def _print_table(cards: list[dict[str, str]], launcher: str) -> None:
    """A row per rank, columns as wide as their content, the libraries once below."""
    columns = [name for name in cards[0] if name != "libraries"]
    rows = [columns, *([card[name] for name in columns] for card in cards)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"launcher: {launcher}; {cards[0]['libraries']}", flush=True)


def verify_all_reduce(rank: int, world_size: int, device: torch.device) -> None:
    """Sum numbers whose sum is known; rank 0 prints the bandwidth, 2 (n−1)/n × bytes / second (nccl-tests' busbw).

    Raises:
        ClusterError: the sum is wrong on this rank.
    """
    buffer = torch.empty(2**20 if device.type == "cpu" else 2**24, device=device)  # 4 or 64 MiB
    expected = world_size * (world_size + 1) // 2
    seconds = []
    for _ in range(3):
        buffer.fill_(rank + 1)
        start = time.perf_counter()
        torch.distributed.all_reduce(buffer)
        low, high = buffer.min().item(), buffer.max().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        if not low == high == expected:
            raise ClusterError(
                f"all-reduce over {world_size} ranks gave {low:g} to {high:g} on rank {rank}, expected {expected}; "
                f"{torch.distributed.get_backend()} does not work between these hosts: take another backend or image."
            )
    if rank == 0:
        rate = 2 * (world_size - 1) / world_size * buffer.nbytes / min(seconds) / 1e9
        backend = torch.distributed.get_backend()
        print(f"all-reduce over {world_size} ranks verified, {rate:.2f} GB/s bus bandwidth ({backend})", flush=True)


def _end_together(here: Cluster) -> None:
    """Wait for rank 0, which saves when the others are done, and then for all: a signal to any rank stops the whole
    job, until every rank has heard that it is complete; from there on none does.

    A rank that waits answers in 0.1 s. One that has come and does not answer in 10 s, or does not come in 30 s, is
    lost: no collective is under way that would notice.

    Raises:
        DistError: another rank failed, was told to stop or went away; :func:`_cause` asks why.
    """
    assert _store
    stop.now()
    others = [f"end/{rank}" for rank in range(1, here.world_size)]
    if here.rank == 0:
        _store.set("end/together", "")
        started = time.monotonic()
        while not _store.check(others):
            if time.monotonic() - started > (10 if _store.add("end/waiting", 0) == len(others) else 30):
                break
            time.sleep(0.02)
        if not all(_store.check([key]) and _store.get(key).decode() == ENDED_WELL for key in others):
            raise torch.distributed.DistNetworkError("a rank did not end well")
        stop.complete()
        return
    _store.add("end/waiting", 1)
    while not _store.check(["end/together"]):
        if _store.check(["end/0"]):
            raise torch.distributed.DistNetworkError(f"{here.name(0)} did not end well")
        time.sleep(0.1)
    stop.complete()
    _store.set(f"end/{here.rank}", ENDED_WELL)


def _lost_a_rank(error: BaseException) -> bool:
    """Whether the error is of a collective whose other side is gone; gloo has no class of its own for that."""
    text = r"gloo|NCCL|[Cc]onnection (reset|closed|refused)|Broken pipe"
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and bool(re.search(text, str(error)))
    )


def _cause(here: Cluster, error: Exception) -> str:
    """What ended the job: asked of the other ranks, for at most 5 s."""
    lines = str(error).strip().splitlines() or [""]
    own = lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {lines[0]}"
    own = f"{here.name(here.rank)} failed: {own}"
    if _store is None:
        return str(error) if isinstance(error, UserError) else own
    lost = _lost_a_rank(error)
    keys = {rank: f"end/{rank}" for rank in range(here.world_size)}
    deadline = time.monotonic() + 5
    try:
        _store.set(keys[here.rank], "" if lost else own)
        while True:
            ends = {rank: _store.get(key).decode() for rank, key in keys.items() if _store.check([key])}
            causes = [text for text in ends.values() if text not in ("", ENDED_WELL)]
            # Rank 0 may keep the store: it stays until all have read.
            if len(ends) == here.world_size or time.monotonic() > deadline or (causes and here.rank != 0):
                break
            time.sleep(0.1)
    except torch.distributed.DistError:
        ends, causes = {rank: "" for rank in keys if rank != 0}, []
    if not lost or causes:
        return causes[0] if lost else own
    silent = ", ".join(here.name(rank) for rank in keys if rank not in ends)
    return f"{silent} ended without a word: killed, perhaps for want of memory; see its log." if silent else own


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of `tensor` over all ranks, on its own device; `tensor` itself where there is no process group.

    A sum is the one reduction that every backend has: SMDDP refuses the rest (Lightning#20409).
    """
    if not torch.distributed.is_initialized():
        return tensor
    total = tensor.detach().clone().to(cluster().device)
    torch.distributed.all_reduce(total)
    return total.to(tensor.device)


def agree(flag: bool) -> bool:
    """Whether the flag is set on any rank; every rank has to ask, and all get the same answer."""
    return bool(all_sum(torch.tensor(int(flag))) > 0)


def another_store() -> torch.distributed.Store:
    """A connection of its own to where the ranks met, for a thread: a call on a connection waits for the one before."""
    here = cluster()
    store = torch.distributed.TCPStore(here.main_address, here.main_port, is_master=False, wait_for_workers=False)
    return torch.distributed.PrefixStore(f"{_attempt()}/watch", store)


def from_rank_0(key: str, make: Callable[[], str]) -> str:
    """What `make` returns on rank 0, on every rank; waits for rank 0, and needs no process group.

    Args:
        key: a name for it, used once in a session.
    """
    if _store is None:
        return make()
    if get_global_rank() == 0:
        _store.set(key, make())
    while not _store.check([key]):  # `get` would wait as long as for the ranks to meet, and no longer
        if _store.check(["end/0"]):
            raise torch.distributed.DistNetworkError("rank 0 did not get that far")
        time.sleep(0.02)
    return _store.get(key).decode()
