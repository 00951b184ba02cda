"""A job from the first rank variable to the end of the process group, on each of its ranks."""

import contextlib
import importlib.util
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.distributed
from pytorch_lightning.utilities import rank_zero_only

from smlightning import errors
from smlightning.cluster import ending, last_words, memory_kills, signals
from smlightning.cluster.ending import End
from smlightning.cluster.location import Cluster, ClusterError, Machine, locate
from smlightning.cluster.rendezvous import RankStore, meet
from smlightning.errors import UserError, write_failure


@cache
def current_cluster() -> Cluster:
    """This process's cluster, read once: Lightning's environments delete variables at teardown."""
    has_smddp = importlib.util.find_spec("smdistributed") and importlib.util.find_spec(
        "smdistributed.dataparallel"
    )
    machine = Machine(
        gpus=torch.cuda.device_count(),
        has_nccl=torch.distributed.is_nccl_available(),
        has_smddp=bool(has_smddp),
        torch_version=torch.__version__,
    )
    return locate(os.environ, machine)


@dataclass
class _Session:
    """What a process knows of the session it is in.

    Attributes:
        cluster: None until the environment has been read.
        store: where its ranks met; None before that, and with one process.
        killed_before: processes that the kernel had killed here for want of memory as it began.
    """

    cluster: Cluster | None = None
    store: RankStore | None = None
    killed_before: int = field(default_factory=memory_kills.count)

    @property
    def killed(self) -> int:
        """Processes that the kernel has killed here for want of memory since it began."""
        return memory_kills.count() - self.killed_before


_session = _Session()  # a process is in one session at a time


@contextlib.contextmanager
def session() -> Iterator[Cluster]:
    """From the first rank variable to the end of the process group.

    An error that ends it is one sentence in SageMaker's failure file on every host, with the rank
    and host where it began: a rank that only lost another one says so, without its own stack trace.

    Raises:
        ClusterError: the environment is refused, or a rank did not come in time or went away.
        UserError: the body ends by ``sys.exit``, which would look like success.
    """
    global _session
    _session = _Session()
    current_cluster.cache_clear()
    try:
        cluster = _session.cluster = current_cluster()
        # Lightning guesses it from variables, of which plain mpirun sets none.
        rank_zero_only.rank = cluster.rank  # type: ignore[attr-defined]
        last_words.note("while it starts", cluster.name(cluster.rank))
        _session.store = meet(cluster)
        yield cluster
        if _session.store:
            ending.end_together(_session.store, cluster)
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
        _session = _Session()


def _fail(error: Exception) -> None:
    """Tell the other ranks and SageMaker of an error.

    Raises:
        Stopped: another rank was told to stop.
        ClusterError: another rank's end is the cause.
        UserError: a disk is full, on whatever rank.
    """
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
    if cluster and ending.lost_a_rank(error):
        me = cluster.name(cluster.rank)
        raise ClusterError(f"{me} had to end: {end.problem}", end.cure) from None
    if errors.is_disk_full(error) and not isinstance(error, UserError):
        raise UserError(end.problem, end.cure) from None


def cause(error: BaseException) -> End:
    """What ended this session: the error, or the end of another rank that it follows from."""
    if _session.cluster and _session.store:
        store, cluster, killed = _session.store, _session.cluster, _session.killed
        return ending.cause_of_end(store, cluster, error, killed)
    return ending.failure(error, _session.cluster, met=False)


def record_failure(error: BaseException) -> None:
    """Tell SageMaker and the other ranks what ended this one; waits for nobody.

    Where this rank only lost another one, that one has the cause, or a third knows of it.
    """
    end = ending.failure(error, _session.cluster, met=_session.store is not None)
    if _session.store and _session.cluster and ending.lost_a_rank(error):
        end = ending.loss(_session.cluster, _session.killed)
    if end.kind == "failed":
        write_failure(str(end))
    if _session.store and _session.cluster:
        ending.announce(_session.store, _session.cluster, end)


def from_rank_0(key: str, compute: Callable[[], str]) -> str:
    """What ``compute`` returns on rank 0, on every rank; waits for rank 0, without a process group.

    Args:
        key: a name that is used once in a session.
    """
    store, cluster = _session.store, _session.cluster
    if store is None or cluster is None:
        return compute()
    if cluster.rank == 0:
        store.set(key, compute())
    return _text_of_rank(store, key, 0)


def from_all_ranks(key: str, text: str) -> list[str]:
    """What each rank says, by rank; waits for all, without a process group.

    Args:
        key: a name that is used once in a session.
    """
    store, cluster = _session.store, _session.cluster
    if store is None or cluster is None:
        return [text]
    store.set(f"{key}/{cluster.rank}", text)
    ranks = range(cluster.world_size)
    return [_text_of_rank(store, f"{key}/{rank}", rank) for rank in ranks]


def _text_of_rank(store: RankStore, key: str, rank: int) -> str:
    """The text that a rank sets, unless it ends before."""
    while True:  # the store's own `get` would wait as long as for the ranks to meet
        has_ended = store.has(ending.end_key(rank))  # before the text: it may set that, and end
        text = store.get(key)
        if text is not None:
            return text
        if has_ended:
            raise torch.distributed.DistNetworkError(f"rank {rank} did not get that far")
        time.sleep(0.02)


def _stop() -> None:
    """End the group; the ranks that lose this one learn that they stop as well."""
    if _session.store and _session.cluster:
        ending.announce(_session.store, _session.cluster, End("stopped"))
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
