"""The ranks of a job connect, exchange values, fail and end together.

They do so over a TCPStore, which works before there is a process group and after one broke. Each
rank writes how it ended under ``end/<rank>``, and the first failure goes under ``cause``.

Only rank 0 reads a value of every rank; it then writes one answer, which all read. If each rank
read all values, the store's traffic would grow with the square of the ranks (benchmarks/scale.py).
"""

import contextlib
import errno
import ipaddress
import json
import math
import os
import re
import shutil
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning
import torch
import torch.distributed
from pytorch_lightning.utilities import rank_zero_only

from smlightning import errors
from smlightning.cluster import signals, slurm
from smlightning.cluster.location import Cluster, ClusterError, Machine, locate
from smlightning.errors import UserError, write_failure

POLL_SECONDS = 0.05  # how often a waiting rank looks at the store
OFTEN = 256  # ranks that look so often: more of them look less often, or the store could not answer
# Rank 0 may keep the store: it stays for several polls, so that the others can read the cause.
LINGER_POLLS = 10
CAUSE_SECONDS = 5.0  # in which the other ranks say how they ended, after a failure
ARRIVAL_SECONDS = 30.0  # in which the other ranks come to the end, after rank 0

CAUSE_KEY = "cause"
REASON_KEY = "reason"  # how the first rank ended that failed or was stopped
ENDS_KEY = "ends"  # the number of ranks that have ended
CONNECTION_ENDED = r"[Cc]onnection (reset|closed|refused|was likely closed)|Broken pipe"
# ncclRemoteError; what NCCL's transports report of a socket (nccl: src/misc/socket.cc); and torch,
# if another rank does not give it NCCL's id (TCPStore.cpp; old torch: Socket Timeout) or this
# rank's watchdog ended NCCL.
NCCL_LOST_A_RANK = (
    r"ncclRemoteError|remote process (exited|exiting)|wait timeout after \d+ms"
    rf"|got error: Socket Timeout|NCCL communicator was aborted|{CONNECTION_ENDED}"
)


@dataclass(frozen=True)
class RankStore:
    """Plain values by key that every rank of a job reads and writes.

    Every method raises ``torch.distributed.DistError`` once the rank that keeps the store is gone.
    """

    store: torch.distributed.Store

    def set(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def set_if_absent(self, key: str, value: Any) -> None:
        self.store.compare_set(key, "", json.dumps(value))

    def get(self, key: str) -> Any:
        """The value of a key, None if no rank has set it; does not wait."""
        return json.loads(self.store.get(key)) if self.has(key) else None

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, which starts at 0; returns the sum."""
        return int(self.store.add(key, amount))

    def has(self, *keys: str) -> bool:
        """Whether all these keys are set."""
        return bool(self.store.check(list(keys)))

    def present(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys that are set, by few questions if most are."""
        if self.has(*keys):
            return list(keys)
        if len(keys) == 1:
            return []
        middle = len(keys) // 2
        return self.present(keys[:middle]) + self.present(keys[middle:])

    def get_each(self, keys: Sequence[str]) -> list[Any]:
        """The values of keys that are set, by one question."""
        return [json.loads(value) for value in self.store.multi_get(list(keys))] if keys else []

    def delete(self, key: str) -> None:
        self.store.delete_key(key)


@dataclass(frozen=True)
class End:
    """The end of a rank.

    Attributes:
        kind: ``well``; ``stopped`` by a signal; ``lost``: another rank failed or vanished; or
            ``failed`` by an error of its own.
        problem: of a failure.
        cure: of a failure.
    """

    kind: Literal["well", "stopped", "lost", "failed"]
    problem: str = ""
    cure: str = ""

    def __str__(self) -> str:
        """One line for a log or a failure file."""
        return f"{self.problem}; {self.cure}" if self.cure else self.problem


def end_key(rank: int) -> str:
    return f"end/{rank}"


@dataclass
class _Session:
    """State of the session in this process.

    Attributes:
        cluster: None until the environment has been read.
        store: None before the ranks connect, and with one process.
        have_met: whether all ranks have come.
        number: of the session in this process, the same on every rank.
        exchanges: number of the exchanges of values so far, the same on every rank.
        sent: the key of what this rank sent to rank 0 last.
    """

    cluster: Cluster | None = None
    store: RankStore | None = None
    have_met: bool = False
    number: int = 0
    exchanges: int = 0
    sent: str = ""


_session = _Session()  # a process is in one session at a time


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
    global _session
    _session = _Session(number=_session.number + 1)
    current_cluster.cache_clear()
    try:
        cluster = _session.cluster = current_cluster()
        # Lightning guesses it from variables, of which plain mpirun sets none.
        rank_zero_only.rank = cluster.rank  # type: ignore[attr-defined]
        _meet(cluster)
        yield cluster
        _end_together()
        _destroy_group()
    except signals.Stopped:
        _stop()
        raise
    except SystemExit as leaving:
        error = signals.left_early(leaving)
        _fail(error)
        raise error from None
    except Exception as error:
        if signals.leaving():
            _stop()
            raise signals.Stopped from None
        _fail(error)
        raise
    finally:
        _session = _Session(number=_session.number)


# Meeting


def _meet(cluster: Cluster) -> None:
    """Wait for every rank; rank 0 prints who came.

    Raises:
        ClusterError: a rank did not connect in time, or has another version of torch or Lightning.
    """
    seconds = _meeting_seconds(os.environ.get("DIST_MEET_SECONDS", "180"))
    if cluster.world_size > 1:
        _session.store = _open_store(cluster, seconds)
    from_rank_0("rank 0", lambda: True, seconds)  # which waits for the others
    infos = to_rank_0("meet", _rank_info(cluster), seconds)
    # Rank 0 itself may wait so long for the others.
    difference = from_rank_0("versions", lambda: _difference(cluster, infos), 2 * seconds)
    _session.have_met = True
    if cluster.rank == 0:
        versions = [info.pop("versions") for info in infos]
        _print_table(infos)
        print(f"launcher: {cluster.launcher}; {versions[0]}", flush=True)
        if unused := slurm.unused(os.environ, cluster.world_size, cluster.num_nodes):
            print(f"warning: {unused}", flush=True)
    if difference:
        raise ClusterError(difference, "install the same requirements on every host")


def _difference(cluster: Cluster, infos: list[dict[str, str]]) -> str:
    """The first rank that has other versions than rank 0."""
    expected = infos[0]["versions"]
    for rank, info in enumerate(infos):
        if info["versions"] != expected:
            return f"{cluster.name(rank)} has {info['versions']}, and rank 0 has {expected}"
    return ""


def _meeting_seconds(text: str) -> float:
    try:
        if (seconds := float(text)) > 0:
            return seconds
    except ValueError:
        pass
    raise ClusterError(
        f"DIST_MEET_SECONDS is {text[:40]!r}; expected seconds above 0",
        "correct DIST_MEET_SECONDS, or unset it",
    )


def _rank_info(cluster: Cluster) -> dict[str, str]:
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
        "versions": f"torch {torch.__version__}, lightning {pytorch_lightning.__version__}",
    }


def _print_table(infos: list[dict[str, str]]) -> None:
    rows = [list(infos[0]), *(list(info.values()) for info in infos)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _open_store(cluster: Cluster, seconds: float) -> RankStore:
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
            raise _late(cluster.name(0), seconds, f" at {host}:{port}")
        time.sleep(POLL_SECONDS)
    options: dict[str, Any] = {}
    if is_keeper:
        _allow_files()
    try:
        listener = _listen(host, port) if is_keeper else None
        if listener:
            # libuv's backend takes no socket before torch 2.6.
            options = {"master_listen_fd": listener.detach(), "use_libuv": False}
        store = torch.distributed.TCPStore(
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
    return _of_this_session(store)


def _allow_files() -> None:
    """Let this process open as many files as it may: the store has some connections of each rank.

    The usual 1,024 are not enough for 300 ranks, and those without a connection would hang.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):  # on Windows there is no limit
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def connect(cluster: Cluster) -> RankStore:
    """Another connection to the store, for a thread: the calls of one connection queue."""
    store = torch.distributed.TCPStore(
        cluster.main_address, cluster.main_port, is_master=False, wait_for_workers=False
    )
    return _of_this_session(store)


def _of_this_session(store: torch.distributed.Store) -> RankStore:
    """The store with a prefix: torchrun's agent keeps the keys of earlier sessions and attempts."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"attempt-{attempt}/session-{_session.number}"
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


def _late(names: str, seconds: float, place: str = "") -> ClusterError:
    return ClusterError(
        f"{names} did not connect{place} within {seconds:g} s",
        "see its log; allow traffic between the hosts in the security group",
    )


# Exchanging values without a process group


def from_rank_0(name: str, compute: Callable[[], Any], seconds: float = math.inf) -> Any:
    """Call ``compute`` on rank 0, and return its plain values on every rank. Waits for rank 0.

    Args:
        name: for errors.
        seconds: to wait at most, as in `wait_for_ranks`.
    """
    store, cluster = _session.store, _session.cluster
    if store is None or cluster is None:
        return compute()
    key = _next_key(name)
    if cluster.rank != 0:
        return wait_for_ranks(store, key, [0], cluster, seconds)[0]
    value = compute()
    store.set(f"{key}/0", value)
    return value


def to_rank_0(name: str, value: Any, seconds: float = math.inf) -> list[Any]:
    """On rank 0 the plain value of each rank, by rank; on the others nothing. Rank 0 waits for all.

    The other ranks have to wait for rank 0, in any way, before they send it another value.

    Args:
        name: for errors.
        value: at most 8 MB of JSON, torch's limit for a value in the store.
        seconds: to wait at most, as in `wait_for_ranks`.
    """
    store, cluster = _session.store, _session.cluster
    if store is None or cluster is None:
        return [value]
    forget_sent()
    key = _next_key(name)
    _session.sent = f"{key}/{cluster.rank}"
    store.set(_session.sent, value)
    if cluster.rank != 0:
        return []
    return wait_for_ranks(store, key, range(cluster.world_size), cluster, seconds)


def forget_sent() -> None:
    """Delete from the store what this rank sent to rank 0 last, which rank 0 has read."""
    if _session.store and _session.sent:
        _session.store.delete(_session.sent)
    _session.sent = ""


def _next_key(name: str) -> str:
    """A key that no other exchange uses: all ranks exchange values in the same order."""
    _session.exchanges += 1
    return f"{name}/{_session.exchanges}"


def wait_for_ranks(
    store: RankStore, key: str, ranks: Collection[int], cluster: Cluster, seconds: float = math.inf
) -> list[Any]:
    """The values that these ranks set under ``key/<rank>``.

    Raises:
        ClusterError: a rank did not set its value within ``seconds``.
        torch.distributed.DistError: a rank failed, or ended without setting its value.
    """
    keys = [f"{key}/{rank}" for rank in ranks]
    deadline = time.monotonic() + seconds
    while True:
        # In this order: a rank may set its value and end between the two questions.
        ended = store.add(ENDS_KEY, 0)
        if store.has(*keys):
            return store.get_each(keys)
        if ended:
            raise torch.distributed.DistNetworkError(f"a rank ended before it set {key}")
        if time.monotonic() > deadline:
            known = set(store.present(keys))
            missing = [rank for rank, name in zip(ranks, keys, strict=True) if name not in known]
            raise _late(", ".join(map(cluster.name, missing)), seconds)
        time.sleep(_poll_seconds(cluster))


def _poll_seconds(cluster: Cluster) -> float:
    """Seconds until a waiting rank looks at the store again."""
    is_one_of_many = cluster.rank != 0 and cluster.world_size > OFTEN
    return POLL_SECONDS * (cluster.world_size / OFTEN if is_one_of_many else 1)


def _linger(cluster: Cluster) -> None:
    time.sleep(LINGER_POLLS * POLL_SECONDS * max(1, cluster.world_size / OFTEN))


# Ending


def _end_together() -> None:
    """Wait for rank 0, which saves when the others are done, and then for all.

    Until every rank knows that the job is complete, a signal to any rank stops the whole job; from
    then on none does.

    Raises:
        torch.distributed.DistError: another rank failed, was stopped or went away.
    """
    signals.exit_on_signal()
    store, cluster = _session.store, _session.cluster
    if store is None or cluster is None:
        return
    while cluster.rank != 0 and not store.has(end_key(0)):
        time.sleep(_poll_seconds(cluster))
    if cluster.rank != 0 and store.get(end_key(0))["kind"] != "well":
        raise torch.distributed.DistNetworkError("rank 0 failed or was stopped")
    set_end(store, cluster.rank, End("well"))
    if cluster.rank == 0:
        _wait_for_ends(store, cluster, ARRIVAL_SECONDS)
        ends = store.get_each(_known_ends(store, cluster))
        if [end["kind"] for end in ends] != ["well"] * cluster.world_size:
            raise torch.distributed.DistNetworkError("a rank failed or was stopped")
    signals.complete()


def set_end(store: RankStore, rank: int, end: End) -> None:
    """Write how a rank ended."""
    store.set(end_key(rank), asdict(end))
    if store.add(f"{end_key(rank)}/times", 1) == 1:  # the watchdog's thread may do so, too
        store.add(ENDS_KEY, 1)


def _wait_for_ends(
    store: RankStore, cluster: Cluster, seconds: float, leave_at_reason: bool = False
) -> None:
    """Wait until all ranks have ended, at most so long.

    Args:
        leave_at_reason: return as soon as a rank has failed or was stopped.
    """
    deadline = time.monotonic() + seconds
    while store.add(ENDS_KEY, 0) < cluster.world_size and time.monotonic() < deadline:
        if leave_at_reason and store.has(REASON_KEY):
            return
        time.sleep(_poll_seconds(cluster))


def _known_ends(store: RankStore, cluster: Cluster) -> list[str]:
    """The keys of the ranks that have ended."""
    return store.present([end_key(rank) for rank in range(cluster.world_size)])


# Failing


def _fail(error: Exception) -> None:
    """Tell the other ranks and SageMaker of an error.

    Raises:
        Stopped: another rank was stopped.
        ClusterError: another rank's end is the cause.
        UserError: a disk is full.
    """
    signals.ignore_ended_workers()
    with contextlib.suppress(ValueError):  # not the main thread
        # A launcher that ends the remaining ranks leaves them time to say why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record_failure(error)
    _abandon_group(error)
    end = cause(error)
    if end.kind == "stopped":
        raise signals.Stopped from None
    write_failure(str(end))
    cluster = _session.cluster
    if cluster and lost_a_rank(error):
        me = cluster.name(cluster.rank)
        raise ClusterError(f"{me} ended because {end.problem}", end.cure) from None
    if errors.is_disk_full(error) and not isinstance(error, UserError):
        raise UserError(end.problem, end.cure) from None


def record_failure(error: BaseException) -> None:
    """Tell SageMaker and the other ranks what ended this one; does not wait.

    If this rank only lost another one, that one has the cause, or a third knows of it.
    """
    if _session.store and lost_a_rank(error):
        end = End("lost")
    else:
        end = _own_end(error)
        write_failure(str(end))
    _announce(end)


def _announce(end: End) -> None:
    """Tell the other ranks how this one ended."""
    store, cluster = _session.store, _session.cluster
    if store is None or cluster is None:
        return
    with contextlib.suppress(torch.distributed.DistError):
        if end.kind in ("failed", "stopped"):  # before its end, after which others read it
            store.set_if_absent(REASON_KEY, asdict(end))
        set_end(store, cluster.rank, end)
        if end.kind == "failed":
            store.set_if_absent(CAUSE_KEY, asdict(end))
        if end.kind == "stopped" and cluster.rank == 0:
            _linger(cluster)


def cause(error: BaseException) -> End:
    """The cause that ended this session: the error, or another rank's end that led to it."""
    store, cluster = _session.store, _session.cluster
    own = _own_end(error)
    if store is None or cluster is None:
        return own
    lost = lost_a_rank(error)
    try:
        # A rank that knows the cause stays until all have read it.
        _wait_for_ends(store, cluster, CAUSE_SECONDS, lost and cluster.rank != 0)
        if cluster.rank == 0:
            _linger(cluster)
        if not lost:
            return own
        reason = store.get(REASON_KEY)
        if reason:
            return End(**reason)
        known = {*_known_ends(store, cluster), end_key(cluster.rank)}
    except torch.distributed.DistError:
        if not lost:
            return own
        known = set(map(end_key, range(1, cluster.world_size)))  # rank 0 is silent
    ranks = range(cluster.world_size)
    silent = [cluster.name(rank) for rank in ranks if end_key(rank) not in known]
    if not silent:
        return own
    reason = errors.nccl_reason(error)
    seen = f" (NCCL reports on {cluster.name(cluster.rank)}: {reason})" if reason else ""
    problem = f"{', '.join(silent)} exited without an error message{seen}"
    return End("failed", problem, "see its log; it may have run out of memory or of batches")


def _own_end(error: BaseException) -> End:
    """The end of this rank by an error, in one line; it names the rank once the ranks have met."""
    user_error = errors.as_user_error(error)
    if user_error:
        problem, cure = user_error.problem, user_error.cure
    else:
        first, *_ = [*str(error).strip().splitlines(), ""]
        parts = (type(error).__name__, first, errors.nccl_reason(error))
        problem, cure = ": ".join(part for part in parts if part), ""
    problem = problem.splitlines()[0]
    cluster = _session.cluster
    is_of_one_rank = _session.store is not None and _session.have_met
    if cluster and (is_of_one_rank or not user_error):
        problem = f"{cluster.name(cluster.rank)} failed: {problem}"
    return End("failed", problem, cure)


def lost_a_rank(error: BaseException) -> bool:
    """Whether a collective's other side is gone; gloo raises a plain RuntimeError then.

    NCCL's errors have many other causes: no memory, no network, a driver.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or errors.is_out_of_memory(error):
        return False
    if isinstance(error, torch.distributed.DistBackendError) or "NCCL" in text:
        return bool(re.search(NCCL_LOST_A_RANK, text))
    is_distributed = isinstance(error, torch.distributed.DistError)
    return is_distributed or bool(re.search(f"gloo|{CONNECTION_ENDED}", text))


def _stop() -> None:
    """End the group; the ranks that lose this one learn that they stop as well."""
    _announce(End("stopped"))
    _destroy_group()


def _destroy_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _abandon_group(error: Exception) -> None:
    """Leave the group after an error: gloo's end wakes the ranks that wait for this one.

    NCCL's is left as it is. To destroy a broken one may block for good (pytorch#141510), and its
    end aborts the other ranks before they have read the cause, which the hang watchdog tells them.
    """
    if not torch.distributed.is_initialized():
        return
    if torch.distributed.get_backend() != "nccl":
        traceback.clear_frames(error.__traceback__)  # they hold the group
        thread = threading.Thread(target=_destroy_group, daemon=True)
        thread.start()
        thread.join(2)
    if torch.distributed.is_initialized():
        signals.exit_without_cleanup()
