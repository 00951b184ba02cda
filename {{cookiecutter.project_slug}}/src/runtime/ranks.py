"""What the ranks of a job say to each other: they meet before the first step, agree, and end together.

Nothing here needs a process group but :func:`all_sum` and :func:`any_rank`: the rest goes through a TCPStore.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytorch_lightning
import torch
import torch.distributed
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from runtime import report, signals
from runtime.cluster import Cluster, ClusterError, Machine, locate
from runtime.report import UserError, write_failure


@cache
def cluster() -> Cluster:
    """This process's cluster, read once: Lightning's own environments delete rank variables at teardown."""
    has_smddp = importlib.util.find_spec("smdistributed") and importlib.util.find_spec("smdistributed.dataparallel")
    has_nccl = torch.distributed.is_nccl_available()
    return locate(os.environ, Machine(torch.cuda.device_count(), has_nccl, bool(has_smddp), torch.__version__))


TOLD_TO_STOP, ENDED_WELL = "told to stop", "ended well"
_store: torch.distributed.Store | None = None  # where the ranks of this session met; None with one process


@contextlib.contextmanager
def session() -> Iterator[Cluster]:
    """From the first rank variable to the end of the process group.

    An error that ends it is one sentence in SageMaker's failure file, on every host, with the rank and host that began
    it: a rank that only lost another one says so instead of its own stack trace.

    Raises:
        ClusterError: the environment is refused, or a rank did not come in time or went away.
    """
    global _store
    cluster.cache_clear()
    this = None
    try:
        this = cluster()
        rank_zero_only.rank = this.rank  # type: ignore[attr-defined]  # plain mpirun sets nothing Lightning guesses by
        if this.world_size > 1:
            _store = _rendezvous(this, _meet_seconds())
        else:
            _print_table([_rank_info(this)], this.launcher)
        yield this
        if _store:
            _end_together(this)
        _end_group()
    except signals.Stopped:
        _stop(this)
        raise
    except Exception as error:
        if signals.leaving():
            _stop(this)
            raise signals.Stopped from None
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher that ends the rest of us leaves time to say why
        record_failure(error)
        _abandon_group(error)
        cause = _cause(this, error) if this else str(error)
        if cause == TOLD_TO_STOP:
            raise signals.Stopped from None
        write_failure(cause)
        if this and _lost_a_rank(error):
            raise ClusterError(f"{this.name(this.rank)} had to end: {cause}") from None
        if report.full_disk(error) and not isinstance(error, UserError):
            raise UserError(cause if this else report.full_disk(error)) from None
        raise
    finally:
        _store = None


def record_failure(error: BaseException) -> None:
    """Leave what ended this rank where SageMaker and the other ranks look for it; this waits for nobody."""
    lost = _store is not None and _lost_a_rank(error)  # that rank, or who knows of it, has the cause
    if not lost:
        write_failure(_sentence(error))
    if _store:
        with contextlib.suppress(torch.distributed.DistError):
            _store.set(f"end/{cluster().rank}", "" if lost else _sentence(error))
            if not lost:
                _store.compare_set("cause", "", _sentence(error))  # where there is one already, it stays


def _sentence(error: BaseException) -> str:
    told = report.sentence(error)
    line = (told or f"{type(error).__name__}: {str(error).strip()}").splitlines()[0]
    if told and _store is None:
        return line
    return f"{cluster().name(cluster().rank)} failed: {line}"


def _stop(this: Cluster | None) -> None:
    """End the group, and let the ranks that lose this one know that they stop as well."""
    if this and _store:
        with contextlib.suppress(torch.distributed.DistError):
            _store.set(f"end/{this.rank}", TOLD_TO_STOP)
            time.sleep(0.5 * (this.rank == 0))  # which may keep the store, and they look every 0.1 s
    _end_group()


def _end_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _abandon_group(error: Exception) -> None:
    """Leave the group after an error: gloo's end wakes the ranks that wait for this one.

    NCCL's is left as it is. To destroy a broken one may block for good (pytorch#141510), and its end aborts the other
    ranks before they have read the cause, which the hang watchdog tells them.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() != "nccl":
        traceback.clear_frames(error.__traceback__)  # they hold the group
        thread = threading.Thread(target=_end_group, daemon=True)
        thread.start()
        thread.join(2)
    if torch.distributed.is_initialized():
        signals.exit_without_cleanup()


def _meet_seconds() -> float:
    text = os.environ.get("DIST_MEET_SECONDS", "180")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 0 < float(text) <= 86400:
        raise ClusterError(f"DIST_MEET_SECONDS={text} is no time to wait; set it to seconds such as 180.")
    return float(text)


def _rendezvous(this: Cluster, seconds: float) -> torch.distributed.Store:
    """Every rank lays its info on a store and waits for all others'; this needs no process group.

    Under torchrun the first host's agent keeps the store (TORCHELASTIC_USE_AGENT_STORE), else rank 0 does, and the
    rendezvous of the process group shares it (multi_tenant).
    """
    late = f"within {seconds:g} s; see its log, and whether the security group lets the hosts reach each other"
    deadline = time.monotonic() + seconds
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    keeper = this.rank == 0 and not agent
    address = f"{this.main_address}:{this.main_port}"
    while not keeper and not _answers(this.main_address, this.main_port):  # TCPStore would wait longer than it is told
        if time.monotonic() > deadline:
            raise ClusterError(f"{this.name(0)} did not come and answer at {address} {late}.")
        time.sleep(0.2)
    try:
        server = torch.distributed.TCPStore(
            this.main_address,
            this.main_port,
            is_master=keeper,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        if re.search("EADDRINUSE|already in use", str(error)):
            raise ClusterError(f"MASTER_PORT={this.main_port} is taken on {address}; end what listens there.") from None
        raise ClusterError(f"{this.name(0)} did not come and answer at {address} {late}.") from None
    store = torch.distributed.PrefixStore(_attempt(), server)
    keys = [f"meet/{rank}" for rank in range(this.world_size)]
    try:
        store.set(keys[this.rank], json.dumps(_rank_info(this)))
        while not store.check(keys):
            if time.monotonic() > deadline and not store.check(["meet/missing"]):
                missing = [this.name(rank) for rank, key in enumerate(keys) if not store.check([key])]
                store.set("meet/missing", ", ".join(missing))
            if store.check(["meet/missing"]):
                text = store.get("meet/missing").decode()
                time.sleep(1)  # for the others to read it, before rank 0 goes and takes the store along
                raise ClusterError(f"{text} did not come {late}.")
            time.sleep(0.1)
        infos = [json.loads(store.get(key)) for key in keys]
        read = store.add("meet/read", 1)
        while keeper and read < this.world_size and time.monotonic() < deadline:  # or it could take the store along
            time.sleep(0.05)
            read = store.add("meet/read", 0)
    except torch.distributed.DistError:
        raise ClusterError(f"{this.name(0)} left while the ranks met; see its log.") from None
    for rank, info in enumerate(infos):
        if info["libraries"] != infos[0]["libraries"]:
            raise ClusterError(
                f"{this.name(rank)} has {info['libraries']}, but rank 0 has {infos[0]['libraries']}; "
                "use one image, and pin the versions in requirements.txt."
            )
    if this.rank == 0:
        _print_table(infos, this.launcher)
    return store


def _attempt() -> str:
    """Goes before every key: torchrun's agent keeps the store, with what was said there, from a restart to the next."""
    return f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def _rank_info(this: Cluster) -> dict[str, str]:
    """What the table at the start of a job says about this rank."""
    gpu = "" if this.device == "cpu" else f" {torch.cuda.get_device_name(this.device)}"
    shm = Path("/dev/shm")  # noqa: S108  too little kills loader workers with a bus error (sagemaker-python-sdk#5592)
    return {
        "host": f"{this.hosts[this.node_rank]} ({socket.gethostname()})",
        "node": str(this.node_rank),
        "rank": f"{this.rank}/{this.world_size}",
        "local rank": f"{this.local_rank}/{this.local_world_size}",
        "device": this.device + gpu,
        "backend": this.backend,
        "shared memory": f"{shutil.disk_usage(shm).total / 2**30:.1f} GiB" if shm.is_dir() else "none",
        "libraries": f"torch {torch.__version__}, lightning {pytorch_lightning.__version__}",
    }


def _print_table(infos: list[dict[str, str]], launcher: str) -> None:
    """A row per rank, columns as wide as their content, the libraries once below."""
    columns = [name for name in infos[0] if name != "libraries"]
    rows = [columns, *([info[name] for name in columns] for info in infos)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"launcher: {launcher}; {infos[0]['libraries']}", flush=True)


def _end_together(this: Cluster) -> None:
    """Wait for rank 0, which saves when the others are done, and then for all: a signal to any rank stops the whole
    job, until every rank has heard that it is complete; from there on none does.

    A rank that waits answers in 0.1 s. One that has come and does not answer in 10 s, or does not come in 30 s, is
    lost: no collective is under way that would notice.

    Raises:
        DistError: another rank failed, was told to stop or went away; :func:`_cause` asks why.
    """
    assert _store
    signals.exit_on_signal()
    others = [f"end/{rank}" for rank in range(1, this.world_size)]
    if this.rank == 0:
        _store.set("end/together", "")
        started = time.monotonic()
        while not _store.check(others):
            if time.monotonic() - started > (10 if _store.add("end/waiting", 0) == len(others) else 30):
                break
            time.sleep(0.02)
        if not all(_store.check([key]) and _store.get(key).decode() == ENDED_WELL for key in others):
            raise torch.distributed.DistNetworkError("a rank did not end well")
        signals.complete()
        return
    _store.add("end/waiting", 1)
    while not _store.check(["end/together"]):
        if _store.check(["end/0"]):
            raise torch.distributed.DistNetworkError(f"{this.name(0)} did not end well")
        time.sleep(0.1)
    signals.complete()
    _store.set(f"end/{this.rank}", ENDED_WELL)


def _lost_a_rank(error: BaseException) -> bool:
    """Whether the error is of a collective whose other side is gone; gloo has no class of its own for that."""
    text = r"gloo|NCCL|[Cc]onnection (reset|closed|refused)|Broken pipe"
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and bool(re.search(text, str(error)))
    )


def _cause(this: Cluster, error: Exception) -> str:
    """What ended the job: this rank's own error, or what another rank says within 5 s."""
    own, lost = _sentence(error), _lost_a_rank(error)
    if _store is None:
        return own
    keys = {rank: f"end/{rank}" for rank in range(this.world_size)}
    deadline = time.monotonic() + 5
    try:
        while True:
            ends = {rank: _store.get(key).decode() for rank, key in keys.items() if _store.check([key])}
            causes = [text for text in ends.values() if text not in ("", ENDED_WELL)]
            # Who knows the cause stays until all have read it, and so does rank 0, which may keep the store.
            if len(ends) == this.world_size or time.monotonic() > deadline or (causes and lost and this.rank != 0):
                break
            time.sleep(0.1)
        time.sleep(0.3 * (this.rank == 0))  # or others, who look every 0.1 s, would meet the end of the store it keeps
    except torch.distributed.DistError:
        ends, causes = {rank: "" for rank in keys if rank != 0}, []
    if not lost or causes:
        return causes[0] if lost else own
    silent = ", ".join(this.name(rank) for rank in keys if rank not in {*ends, this.rank})
    why = "exited without an error message: for lack of memory perhaps, in native code or out of batches; see its log."
    return f"{silent} {why}" if silent else own


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of `tensor` over all ranks, on its own device; `tensor` itself where there is no process group.

    A sum is the one reduction that every backend has: SMDDP refuses the rest (Lightning#20409).
    """
    if not torch.distributed.is_initialized():
        return tensor
    total = tensor.detach().clone().to(cluster().device)
    torch.distributed.all_reduce(total)
    return total.to(tensor.device)


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank; every rank has to ask, and all get the same answer."""
    return bool(all_sum(torch.tensor(int(flag))) > 0)


def another_store() -> torch.distributed.Store:
    """A connection of its own to where the ranks met, for a thread: a call on a connection waits for the one before."""
    this = cluster()
    store = torch.distributed.TCPStore(this.main_address, this.main_port, is_master=False, wait_for_workers=False)
    return torch.distributed.PrefixStore(_attempt(), store)


def from_rank_0(key: str, make: Callable[[], str]) -> str:
    """What `make` returns on rank 0, on every rank; waits for it, without a process group. Use a key once."""
    if _store is None:
        return make()
    if cluster().rank == 0:
        _store.set(key, make())
    while not _store.check([key]):  # `get` would wait as long as for the ranks to meet, and no longer
        if _store.check(["end/0"]):
            raise torch.distributed.DistNetworkError("rank 0 did not get that far")
        time.sleep(0.02)
    return _store.get(key).decode()


def sum_over_ranks(state: Tensor, group: object = None) -> list[Tensor]:
    """``dist_sync_fn`` for a torchmetrics metric whose states are sums: one all-reduce, which SMDDP has as well."""
    return [all_sum(state)]
