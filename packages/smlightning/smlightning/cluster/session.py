"""The ranks of a job connect, and end together."""

import contextlib
import errno
import functools
import ipaddress
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
import torch.distributed
from pytorch_lightning.utilities import rank_zero_only

from smlightning import __version__
from smlightning.cluster import ending, signals, slurm, watch
from smlightning.cluster.ending import RankOutcome
from smlightning.cluster.exchange import LateRanks, difference, from_rank_0, to_rank_0
from smlightning.cluster.location import Cluster, ClusterError, Machine, locate
from smlightning.cluster.store import Ranks, RankStore

ARRIVAL_SECONDS = 300.0  # in which the other ranks complete the job, after rank 0
STARTED = "started"  # the key that rank 0 sets once all ranks have connected

_numbers = count()  # of the sessions in this process
# By process, address and port: the sessions of a process share one, since rank 0 keeps its port.
_stores: dict[tuple[int, str, int], torch.distributed.Store] = {}


@cache
def current_cluster() -> Cluster:
    """This process's cluster, read once: Lightning's environments delete variables at teardown."""
    machine = Machine(
        gpus=torch.cuda.device_count(),
        has_nccl=torch.distributed.is_nccl_available(),
        torch_version=torch.__version__,
    )
    return locate(os.environ, machine)


@contextlib.contextmanager
def session() -> Iterator[Cluster]:
    """From the first rank variable to the end of the process group.

    An error in the body becomes one sentence in SageMaker's failure file on every host, with the
    rank and host where it began. A rank that only lost another one says so, without a stack trace.

    Raises:
        ClusterError: the environment is wrong, or a rank did not connect in time or went away.
        UserError: the body ends by ``sys.exit``, which would look like success.
    """
    current_cluster.cache_clear()
    try:
        cluster = current_cluster()
        # Lightning guesses it from variables, of which plain mpirun sets none.
        rank_zero_only.rank = cluster.rank  # type: ignore[attr-defined]
        ranks = _connect(cluster)
        yield cluster
        _end_together(ranks)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    except (Exception, SystemExit) as error:
        ended = ending.end(error)
        if ended is error:
            raise
        raise ended from None
    finally:
        ending.leave()


def connect() -> RankStore:
    """Another connection to the store, for a thread: the calls of one connection queue."""
    ranks = ending.ranks()
    assert ranks and ranks.connect, "there is one process"
    return ranks.connect()


# Connecting


def _connect(cluster: Cluster) -> Ranks:
    """Wait for every rank; rank 0 prints who came.

    Raises:
        ClusterError: a rank did not connect in time, or has another version of torch or Lightning.
    """
    seconds = _connect_seconds(os.environ.get("DIST_CONNECT_SECONDS", "180"))
    ranks = Ranks(cluster)
    ending.enter(ranks)
    if cluster.world_size > 1:
        # torchrun's agent keeps the keys of earlier sessions and attempts.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"attempt-{attempt}/session-{next(_numbers)}"
        opened = _shared_store(cluster, seconds)
        store = RankStore(torch.distributed.PrefixStore(prefix, opened))
        if store.has(STARTED):  # what this rank published would end that job
            raise ClusterError(
                f"the ranks at {cluster.main_address}:{cluster.main_port} have started without "
                f"rank {cluster.rank} of this process: they are another job's, or it was restarted",
                "set another MASTER_PORT for this job, or restart all of its ranks",
            )
        ranks = Ranks(
            cluster,
            store,
            functools.partial(_open_another, cluster, prefix),
        )
        ending.enter(ranks)
        watch.start(os.getpid())
    from_rank_0("rank 0", lambda: True, seconds)  # which waits for the others
    infos = to_rank_0("rank information", _rank_info(cluster), seconds)
    # Rank 0 itself may wait so long for the others.
    found = from_rank_0("versions", lambda: _difference(cluster, infos), 2 * seconds)
    if cluster.rank == 0:
        if ranks.store:
            ranks.store.set(STARTED, True)
        versions = ", ".join(" ".join(pair) for pair in _versions().items())
        _print_table(infos)
        print(f"launcher: {cluster.launcher}; {versions}", flush=True)
        tasks = slurm.unused(os.environ, cluster.world_size, cluster.num_nodes)
        for unused in filter(None, (tasks, unused_gpu())):
            print(f"warning: {unused}", flush=True)
    if found:
        raise ClusterError(*found)
    return ranks


def _difference(cluster: Cluster, infos: list[dict[str, Any]]) -> tuple[str, str] | None:
    versions = [info.pop("versions") for info in infos]
    hint = "install the same requirements on every host"
    return difference(cluster, [{hint: version} for version in versions])


def _versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "lightning": pytorch_lightning.__version__,
        "smlightning": __version__,
    }


def unused_gpu(gpu: Path = Path("/dev/nvidia0")) -> str:
    """A sentence if this host has an NVIDIA GPU that its torch cannot use; else empty.

    The environment may come from a machine without a GPU, where `make` takes torch for CPUs.
    """
    if torch.version.cuda or not gpu.exists():
        return ""
    problem = f"this host has an NVIDIA GPU, and torch {torch.__version__} no CUDA"
    return f"{problem}; install another torch: make setup TORCH=cuda"


def _connect_seconds(text: str) -> float:
    try:
        if (seconds := float(text)) > 0:
            return seconds
    except ValueError:
        pass
    raise ClusterError(
        f"DIST_CONNECT_SECONDS is {text[:40]!r}; expected seconds above 0",
        "correct DIST_CONNECT_SECONDS, or unset it",
    )


def _rank_info(cluster: Cluster) -> dict[str, Any]:
    """A row of the table that rank 0 prints at the start."""
    device = cluster.device
    if device != "cpu":
        device += f" {torch.cuda.get_device_name(device)}"
    # Loader workers die of a bus error if it is too small (sagemaker-python-sdk#5592).
    shared_memory = Path("/dev/shm")  # noqa: S108
    size = shutil.disk_usage(shared_memory).total / 2**30 if shared_memory.is_dir() else 0.0
    return {
        "host": f"{cluster.hosts[cluster.node_rank]} ({socket.gethostname()})",
        "node": str(cluster.node_rank),
        "rank": f"{cluster.rank}/{cluster.world_size}",
        "local rank": f"{cluster.local_rank}/{cluster.local_world_size}",
        "device": device,
        "backend": cluster.backend,
        "shared memory": f"{size:.1f} GiB",
        "versions": _versions(),
    }


def _print_table(infos: list[dict[str, str]]) -> None:
    rows = [list(infos[0]), *(list(info.values()) for info in infos)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _shared_store(cluster: Cluster, seconds: float) -> torch.distributed.Store:
    """The store of this process's sessions, connected again if that connection has ended."""
    place = os.getpid(), cluster.main_address, cluster.main_port
    with contextlib.suppress(KeyError, RuntimeError):
        _stores[place].check([STARTED])
        return _stores[place]
    _stores[place] = _open_store(cluster, seconds)
    return _stores[place]


def _open_store(cluster: Cluster, seconds: float) -> torch.distributed.Store:
    """Connect to the store, for at most so long.

    Under torchrun the first host's agent keeps it (TORCHELASTIC_USE_AGENT_STORE), else rank 0 does,
    and the rendezvous of the process group shares it (``multi_tenant``).
    """
    host, port = cluster.main_address, cluster.main_port
    is_keeper = cluster.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    deadline = time.monotonic() + seconds
    # TCPStore would fill the log with warnings while it waits.
    while not is_keeper and not _answers(host, port):
        if time.monotonic() > deadline:
            raise LateRanks(cluster.name(0), seconds, f" at {host}:{port}")
        time.sleep(ending.POLL_SECONDS)
    options: dict[str, Any] = {}
    if is_keeper:
        _allow_files()
    try:
        listener = _listen(host, port) if is_keeper else None
        if listener:
            # libuv's backend takes no socket before torch 2.6.
            options = {"master_listen_fd": listener.detach(), "use_libuv": False}
        return torch.distributed.TCPStore(
            host,
            port,
            is_master=is_keeper,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
            **options,
        )
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"the ranks cannot connect at {host}:{port} ({str(error).splitlines()[0]})",
            "end the other program that uses this port, or see the log of rank 0",
        ) from None


def _allow_files() -> None:
    """Let this process open as many files as it may: the store has some connections of each rank.

    The usual 1,024 are not enough for 300 ranks, and those without a connection would hang.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):  # on Windows there is no limit
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _open_another(cluster: Cluster, prefix: str) -> RankStore:
    store = torch.distributed.TCPStore(
        cluster.main_address, cluster.main_port, is_master=False, wait_for_workers=False
    )
    return RankStore(torch.distributed.PrefixStore(prefix, store))


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that only the network of ``host`` reaches: the store has no password.

    None if this machine has no such address, as behind a Kubernetes service, or if the host's own
    name is a loopback address, as on Debian: then the store listens on all.
    """
    kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if ipaddress.ip_address(address[0]).is_loopback and host not in (address[0], "localhost"):
        return None
    try:
        return socket.create_server(address[:2], family=kind, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise


def _answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


# Ending


def _end_together(ranks: Ranks) -> None:
    """Wait for rank 0, which saves when the others are done, and then for all.

    Until every rank knows that the job is complete, a signal to any rank stops the whole job; from
    then on none does.

    Raises:
        torch.distributed.DistError: another rank failed, was stopped or went away.
    """
    signals.exit_on_signal()
    store, cluster = ranks.store, ranks.cluster
    if store is None:
        return
    if cluster.rank != 0:
        _wait_for_ranks(store, {0}, math.inf)
    ending.publish(RankOutcome(cluster.rank, "done"), store)
    if cluster.rank == 0:
        _wait_for_ranks(store, {*range(cluster.world_size)}, ARRIVAL_SECONDS)
    signals.complete()


def _wait_for_ranks(store: RankStore, awaited: set[int], seconds: float) -> None:
    """Wait until these ranks are done, at most so long."""
    deadline = time.monotonic() + seconds
    done: set[int] = set()
    while not done >= awaited and time.monotonic() < deadline:
        time.sleep(ending.POLL_SECONDS)
        found = ending.outcomes(store)
        done = {rank for rank, outcome in found.items() if outcome.kind == "done"}
        if len(done) < len(found):
            break
    if not done >= awaited:
        raise torch.distributed.DistNetworkError("a rank failed, was stopped or went away")
