"""How the ranks of a job meet before the first step, and the store that they meet on.

The store is a TCPStore. It needs no process group: it works before there is one and after it broke.
"""

import contextlib
import errno
import ipaddress
import json
import os
import re
import shutil
import socket
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
import torch.distributed

from smlightning.cluster.location import Cluster, ClusterError

READ_SECONDS = 1.0  # for all ranks to read which one is missing, before rank 0 ends the store
# Of one TCPStore: it waits more than twice as long for an address that answered once and then no
# more, so that it is asked again until the time for all ranks is over.
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class RankStore:
    """Texts by key that every rank of a job reads and writes.

    Every method raises ``torch.distributed.DistError`` once the rank that keeps the store is gone.
    """

    store: torch.distributed.Store

    def set(self, key: str, text: str) -> None:
        self.store.set(key, text)

    def set_if_absent(self, key: str, text: str) -> None:
        self.store.compare_set(key, "", text)

    def get(self, key: str) -> str | None:
        """The text of a key, None where no rank has set it; waits for nobody."""
        if not self.store.check([key]):
            return None
        return str(self.store.get(key).decode())

    def has(self, *keys: str) -> bool:
        """Whether every one of these keys is set."""
        return bool(self.store.check(list(keys)))

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, which starts at 0; the sum."""
        return int(self.store.add(key, amount))


@dataclass(frozen=True)
class RankInfo:
    """What the table at the start of a job says of one rank."""

    host: str
    node: str
    rank: str
    local_rank: str
    device: str
    backend: str
    shared_memory: str
    libraries: str

    @classmethod
    def of(cls, cluster: Cluster) -> "RankInfo":
        """Of this process."""
        device = cluster.device
        if device != "cpu":
            device += f" {torch.cuda.get_device_name(device)}"
        return cls(
            host=f"{cluster.hosts[cluster.node_rank]} ({socket.gethostname()})",
            node=str(cluster.node_rank),
            rank=f"{cluster.rank}/{cluster.world_size}",
            local_rank=f"{cluster.local_rank}/{cluster.local_world_size}",
            device=device,
            backend=cluster.backend,
            shared_memory=_shared_memory(),
            libraries=f"torch {torch.__version__}, lightning {pytorch_lightning.__version__}",
        )


def _shared_memory() -> str:
    """Size of /dev/shm. Too little ends loader workers with a bus error.

    See sagemaker-python-sdk#5592.
    """
    folder = Path("/dev/shm")  # noqa: S108
    if not folder.is_dir():
        return "none"
    return f"{shutil.disk_usage(folder).total / 2**30:.1f} GiB"


def print_table(infos: list[RankInfo], launcher: str) -> None:
    """Print a row for each rank, columns as wide as their content, and the libraries once below."""
    records = [asdict(info) for info in infos]
    columns = [name for name in records[0] if name != "libraries"]
    rows = [[name.replace("_", " ") for name in columns]]
    rows += [[record[name] for name in columns] for record in records]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    print(f"launcher: {launcher}; {infos[0].libraries}", flush=True)


def meet(cluster: Cluster) -> RankStore | None:
    """Wait for every rank, and print on rank 0 who came.

    Under torchrun the first host's agent keeps the store (TORCHELASTIC_USE_AGENT_STORE), else rank
    0 does, and the rendezvous of the process group shares it (``multi_tenant``).

    Returns:
        The store that they met on; None for one process.

    Raises:
        ClusterError: a rank did not come in time or left, or has other versions of the libraries.
    """
    if cluster.world_size == 1:
        print_table([RankInfo.of(cluster)], cluster.launcher)
        return None
    seconds = _patience()
    deadline = time.monotonic() + seconds
    is_keeper = cluster.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _open_store(cluster, is_keeper, seconds, deadline)
    try:
        infos = _exchange(cluster, store, seconds, deadline)
        _wait_until_read(cluster, store, is_keeper, deadline)
    except torch.distributed.DistError:
        raise ClusterError(f"{cluster.name(0)} left while the ranks met", "see its log") from None
    _compare_libraries(cluster, infos)
    if cluster.rank == 0:
        print_table(infos, cluster.launcher)
    return store


def connect(cluster: Cluster) -> RankStore:
    """Another connection to the store, for a thread: a call waits for the connection's last one."""
    store = torch.distributed.TCPStore(
        cluster.main_address, cluster.main_port, is_master=False, wait_for_workers=False
    )
    return _of_this_attempt(store)


def _patience() -> float:
    """Seconds to wait for all ranks: DIST_MEET_SECONDS."""
    text = os.environ.get("DIST_MEET_SECONDS", "180")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 0 < float(text) <= 86400:
        raise ClusterError(
            f"DIST_MEET_SECONDS={text} is no time to wait", "set it to seconds such as 180"
        )
    return float(text)


def _late(names: str, seconds: float, address: str = "") -> ClusterError:
    answer = f" and answer at {address}" if address else ""
    return ClusterError(
        f"{names} did not come{answer} within {seconds:g} s",
        "see its log, and whether the security group lets the hosts reach each other",
    )


def _open_store(cluster: Cluster, is_keeper: bool, seconds: float, deadline: float) -> RankStore:
    host, port = cluster.main_address, cluster.main_port
    while True:
        if is_keeper or _answers(host, port):
            left = max(1.0, deadline - time.monotonic())
            store = _try_store(host, port, is_keeper, min(CONNECT_SECONDS, left))
            if store is not None:
                store.set_timeout(timedelta(seconds=seconds))
                return _of_this_attempt(store)
        if time.monotonic() > deadline:
            raise _late(cluster.name(0), seconds, f"{host}:{port}")
        time.sleep(0.2)


def _try_store(
    host: str, port: int, is_keeper: bool, seconds: float
) -> torch.distributed.TCPStore | None:
    """The store, None where it does not answer in time."""
    options: dict[str, Any] = {}
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
        if re.search("EADDRINUSE|already in use", str(error)):
            raise ClusterError(
                f"MASTER_PORT={port} is taken on {host}:{port}", "end what listens there"
            ) from None
        return None


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that only the network of ``host`` reaches: the store has no password.

    None where this machine has no such address, as behind a Kubernetes service, or where the
    host's own name is a loopback address, as on Debian: then the store listens on all.
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


def _of_this_attempt(store: torch.distributed.Store) -> RankStore:
    """The store with a prefix: torchrun's agent keeps its keys from a restart to the next."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return RankStore(torch.distributed.PrefixStore(f"attempt-{attempt}", store))


def _answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _exchange(
    cluster: Cluster, store: RankStore, seconds: float, deadline: float
) -> list[RankInfo]:
    """Every rank's info; the first rank that has waited too long says which are missing."""
    keys = [f"meet/{rank}" for rank in range(cluster.world_size)]
    store.set(keys[cluster.rank], json.dumps(asdict(RankInfo.of(cluster))))
    while not store.has(*keys):
        if time.monotonic() > deadline and not store.has("meet/missing"):
            missing = [cluster.name(rank) for rank, key in enumerate(keys) if not store.has(key)]
            store.set("meet/missing", ", ".join(missing))
        names = store.get("meet/missing")
        if names is not None:
            time.sleep(READ_SECONDS)
            raise _late(names, seconds)
        time.sleep(0.1)
    return [RankInfo(**json.loads(store.get(key) or "")) for key in keys]


def _wait_until_read(cluster: Cluster, store: RankStore, is_keeper: bool, deadline: float) -> None:
    """The rank that keeps the store goes on when all have read it: it could end the store early."""
    readers = store.add("meet/read", 1)
    while is_keeper and readers < cluster.world_size and time.monotonic() < deadline:
        time.sleep(0.05)
        readers = store.add("meet/read", 0)


def _compare_libraries(cluster: Cluster, infos: list[RankInfo]) -> None:
    for rank, info in enumerate(infos):
        if info.libraries != infos[0].libraries:
            raise ClusterError(
                f"{cluster.name(rank)} has {info.libraries}, but rank 0 has {infos[0].libraries}",
                "use one image, and pin the versions in requirements.txt",
            )
