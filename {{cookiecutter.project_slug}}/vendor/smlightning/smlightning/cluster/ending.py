"""How the ranks of a job end together, and how each one learns which rank ended it, and why.

Every rank leaves its end on the store under ``end/<rank>``, and the first failure under ``cause``.
"""

import json
import re
import time
from dataclasses import asdict, dataclass
from typing import Literal

import torch.distributed

from smlightning import errors
from smlightning.cluster import signals
from smlightning.cluster.location import Cluster
from smlightning.cluster.rendezvous import RankStore

CAUSE_SECONDS = 5.0  # in which the other ranks say how they ended
SILENT_SECONDS = 10.0  # for the answer of a rank that waits for the end; it looks every 0.1 s
ARRIVAL_SECONDS = 30.0  # for the other ranks to come to the end

CONNECTION_ENDED = r"[Cc]onnection (reset|closed|refused|was likely closed)|Broken pipe"
# ncclRemoteError; what NCCL's transports report of a socket (nccl: src/misc/socket.cc); and torch,
# where another rank does not give it NCCL's id (TCPStore.cpp; old torch: Socket Timeout) or this
# one's watchdog ended NCCL.
NCCL_LOST_A_RANK = (
    r"ncclRemoteError|remote process (exited|exiting)|wait timeout after \d+ms"
    rf"|got error: Socket Timeout|NCCL communicator was aborted|{CONNECTION_ENDED}"
)

CAUSE_KEY = "cause"  # the first failure; the hang watchdog reads it
_TOGETHER_KEY = "end/together"
_WAITING_KEY = "end/waiting"


@dataclass(frozen=True)
class End:
    """How a rank ended.

    Attributes:
        kind: ``well``; ``stopped`` by a signal; ``lost`` another rank, which has the cause; or
            ``failed``, with the error's problem and cure.
        problem: of a failure; of ``lost``, what this rank's host says of it, or nothing.
    """

    kind: Literal["well", "stopped", "lost", "failed"]
    problem: str = ""
    cure: str = ""

    def __str__(self) -> str:
        """One line for a log or a failure file."""
        return f"{self.problem}; {self.cure}" if self.cure else self.problem

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> "End":
        """The End that ``dumps`` made a text of."""
        return End(**json.loads(text))


def end_key(rank: int) -> str:
    return f"end/{rank}"


def failure(error: BaseException, cluster: Cluster | None, *, met: bool) -> End:
    """The end of a rank by this error, in one line.

    Args:
        cluster: None where the process does not know its place yet.
        met: whether the ranks have met. From then on each error is one rank's, and names it.
    """
    user_error = errors.as_user_error(error)
    if user_error:
        problem, cure = user_error.problem, user_error.cure
    else:
        first, *_ = [*str(error).strip().splitlines(), ""]
        parts = (type(error).__name__, first, errors.nccl_reason(error))
        problem, cure = ": ".join(part for part in parts if part), ""
    problem = problem.splitlines()[0]
    if cluster and (met or not user_error):
        problem = f"{cluster.name(cluster.rank)} failed: {problem}"
    return End("failed", problem, cure)


def lost_a_rank(error: BaseException) -> bool:
    """Whether a collective's other side is gone; gloo raises a plain RuntimeError for that.

    NCCL's errors have many other causes: no memory, no network, a driver.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or errors.is_out_of_memory(error):
        return False
    if isinstance(error, torch.distributed.DistBackendError) or "NCCL" in text:
        return bool(re.search(NCCL_LOST_A_RANK, text))
    is_distributed = isinstance(error, torch.distributed.DistError)
    return is_distributed or bool(re.search(f"gloo|{CONNECTION_ENDED}", text))


def loss(cluster: Cluster, killed: int) -> End:
    """The end of a rank that lost another one.

    Args:
        killed: processes that the kernel killed here for want of memory while the job ran.
    """
    host, count = cluster.hosts[cluster.node_rank], f"{killed} process{'es' * (killed > 1)}"
    problem = f"the kernel of host {host} killed {count} for lack of memory"
    return End("lost", problem if killed else "")


def announce(store: RankStore, cluster: Cluster, end: End) -> None:
    """Tell the other ranks how this one ended; waits for nobody."""
    try:
        store.set(end_key(cluster.rank), end.dumps())
        if end.kind == "failed":
            store.set_if_absent(CAUSE_KEY, end.dumps())
        if end.kind == "stopped" and cluster.rank == 0:
            time.sleep(0.5)  # it may keep the store, and the others look every 0.1 s
    except torch.distributed.DistError:
        pass


def end_together(store: RankStore, cluster: Cluster) -> None:
    """Wait for rank 0, which saves when the others are done, and then for all.

    Until every rank knows that the job is complete, a signal to any rank stops the whole job; from
    then on none does. No collective is under way that would notice a lost rank: one that has come
    and does not answer, or does not come, within a time is taken for lost.

    Raises:
        torch.distributed.DistError: another rank failed, was told to stop or went away.
    """
    signals.exit_on_signal()
    if cluster.rank == 0:
        _end_as_rank_0(store, cluster)
        return
    store.add(_WAITING_KEY, 1)
    while not store.has(_TOGETHER_KEY):
        if store.has(end_key(0)):
            raise torch.distributed.DistNetworkError(f"{cluster.name(0)} did not end well")
        time.sleep(0.1)
    signals.complete()
    store.set(end_key(cluster.rank), End("well").dumps())


def _end_as_rank_0(store: RankStore, cluster: Cluster) -> None:
    others = range(1, cluster.world_size)
    keys = [end_key(rank) for rank in others]
    store.set(_TOGETHER_KEY, "")
    started = time.monotonic()
    while not store.has(*keys):
        all_wait = store.add(_WAITING_KEY, 0) == len(others)
        if time.monotonic() - started > (SILENT_SECONDS if all_wait else ARRIVAL_SECONDS):
            break
        time.sleep(0.02)
    ends = _known_ends(store, cluster)
    if any(rank not in ends or ends[rank].kind != "well" for rank in others):
        raise torch.distributed.DistNetworkError("a rank did not end well")
    signals.complete()


def _known_ends(store: RankStore, cluster: Cluster) -> dict[int, End]:
    ends = {}
    for rank in range(cluster.world_size):
        text = store.get(end_key(rank))
        if text is not None:
            ends[rank] = End.loads(text)
    return ends


def cause_of_end(store: RankStore, cluster: Cluster, error: BaseException, killed: int = 0) -> End:
    """What ended the job: this rank's own error, or what another rank says within CAUSE_SECONDS.

    Args:
        killed: as in ``loss``.
    """
    lost = lost_a_rank(error)
    this_rank = failure(error, cluster, met=True)
    try:
        ends = _wait_for_ends(store, cluster, lost)
    except torch.distributed.DistError:
        ends = {rank: End("lost") for rank in range(1, cluster.world_size)}  # rank 0 is silent
    if not lost:
        return this_rank
    for end in ends.values():
        if end.kind in ("failed", "stopped"):
            return end
    known = {*ends, cluster.rank}
    silent = [cluster.name(rank) for rank in range(cluster.world_size) if rank not in known]
    if not silent:
        return this_rank
    reason = errors.nccl_reason(error)
    seen = f" ({cluster.name(cluster.rank)} has from NCCL: {reason})" if reason else ""
    problem = f"{', '.join(silent)} exited without an error message{seen}"
    for end in (loss(cluster, killed), *ends.values()):
        if end.problem:
            return End("failed", f"{problem}, and {end.problem}", errors.MORE_MEMORY)
    guess = "for lack of memory perhaps, in native code or out of batches"
    return End("failed", f"{problem}: {guess}", "see its log")


def _wait_for_ends(store: RankStore, cluster: Cluster, lost: bool) -> dict[int, End]:
    """The ends of all ranks, or those that are known in time.

    A rank that knows the cause stays until all have read it, and so does rank 0, which may keep the
    store; another one that lost a rank leaves as soon as it has read a cause.
    """
    deadline = time.monotonic() + CAUSE_SECONDS
    while True:
        ends = _known_ends(store, cluster)
        is_cause_known = any(end.kind in ("failed", "stopped") for end in ends.values())
        if len(ends) == cluster.world_size or time.monotonic() > deadline:
            break
        if is_cause_known and lost and cluster.rank != 0:
            break
        time.sleep(0.1)
    if cluster.rank == 0:
        time.sleep(0.3)  # or others, who look every 0.1 s, would meet the end of the store
    return ends
