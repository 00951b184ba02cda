"""Notes what a process of a rehearsal does: its steps, batches, weights, files and prints.

torch calls ``watch`` at the end of ``import torch`` (entry point ``torch.backends``), so any script
is observed without a change. rehearsal_recorder.py adds what only Lightning's Trainer knows. The
names of the facts are those of evidence.Rank.
"""

import atexit
import builtins
import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import rehearsal_tensors
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader

FAULT_STEP = 2  # late enough that every rank is in the middle of training
BATCHES = 500  # of the first epoch: ranks that share data do so from the beginning
SAMPLES = 20_000
INTERVAL = 0.2  # seconds between two notes of a process in training
# Attributes of FSDP2's parameters; and of FSDP's, with and without use_orig_params.
SHARDED_MARKS = ("full_tensor", "_fsdp_flattened", "_is_flat_param")
OF_SYSTEM = ("/dev/", "/proc/", "/sys/")

facts: dict[str, Any] = {"files": [], "printed": 0, "steps": 0}
latest: dict[str, Any] = {}  # data of the last loader, the last optimizer, time of the last note


def watch() -> None:
    """Watch this process, if it belongs to a rehearsal's host."""
    if "REHEARSAL_EVIDENCE" not in os.environ:
        return
    facts["host"] = int(os.environ["REHEARSAL_HOST"])
    watch_files(os.environ["REHEARSAL_BASE"], facts["files"])
    register_optimizer_step_post_hook(after_step)
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    rendezvous._create_c10d_store = at_torchruns_port(rendezvous._create_c10d_store)
    DataLoader.__iter__ = noted_batches(DataLoader.__iter__)  # type: ignore[method-assign]
    builtins.print = counted(builtins.print)
    atexit.register(at_exit)


def after_step(optimizer: Optimizer, *_: Any) -> None:
    """Count a step; a process without Lightning's Trainer becomes a rank by its first one."""
    facts["steps"] += 1
    if trains_with_lightning():
        return  # rehearsal_recorder.py notes the rest
    latest["optimizer"] = optimizer
    if facts["steps"] == 1:
        facts.update(latest.setdefault("data", {}))
        facts.update(place())
    if facts["steps"] <= FAULT_STEP or time.monotonic() > latest["saved"] + INTERVAL:
        save()
    carry_out_fault(facts["steps"], facts["rank"])


def trains_with_lightning() -> bool:
    """Whether this process has made one of Lightning's Trainers."""
    return "prepare_data" in facts


def place() -> dict[str, Any]:
    """Where torch and the launcher say that this process is."""
    together = dist.is_initialized()
    local_rank = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    return {
        "rank": dist.get_rank() if together else 0,
        "world_size": dist.get_world_size() if together else 1,
        "local_rank": int(os.environ.get("LOCAL_RANK", local_rank)),
        "node_rank": facts["host"],  # torch has no node rank
        "current_host": os.environ.get("SM_CURRENT_HOST", ""),
        "main_address": main_address(),
    }


def main_address() -> str:
    """The address at which this process met rank 0; empty for a single one, or by a file."""
    if not dist.is_initialized():
        return ""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


def at_torchruns_port(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function by which a process joins the others, which fails at once at a wrong port.

    torchrun itself listens at the port that it gave. At another port a process waits for minutes.
    """

    @functools.wraps(original)
    def join(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            started_with = psutil.Process().environ()
            given = started_with.get("MASTER_PORT", str(port))
            if given != str(port):
                raise RuntimeError(
                    f"the script joins the ranks at port {port}, but torchrun's store is at {given}"
                )
        return original(hostname, port, *args, **kwargs)

    return join


def carry_out_fault(step: int, rank: int) -> None:
    """In step 2, let the rehearsal stop or kill the host, or fail as ``--fail-rank`` asks."""
    if step != FAULT_STEP:
        return
    (evidence().parent / f"in-training-{facts['host']}").touch()
    kind, _, target = os.environ["REHEARSAL_FAULT"].partition(" ")
    if kind not in ("fail-rank", "kill-rank") or int(target) != rank:
        return
    facts["fault_at"] = time.time()
    save()
    if kind == "kill-rank":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(f"rank {target} fails because --fail-rank asks for it")


def at_exit() -> None:
    """Note the last weights of a process that trained without Lightning's Trainer."""
    if "optimizer" in latest:
        groups = latest["optimizer"].param_groups
        weights = [parameter for group in groups for parameter in group["params"]]
        sharded = any(hasattr(each, mark) for each in weights for mark in SHARDED_MARKS)
        # The other ranks, which would have to take part in gathering shards, may have ended.
        facts["weights"] = "sharded" if sharded else digest(weights)
    if "rank" in facts:
        save()


def evidence() -> Path:
    return Path(os.environ["REHEARSAL_EVIDENCE"]) / f"rank-{facts['host']}-{os.getpid()}.json"


def save() -> None:
    """Write the facts whole, since the process may be killed at any time."""
    unfinished = evidence().with_suffix(".part")
    unfinished.write_text(json.dumps(facts))
    unfinished.replace(evidence())
    latest["saved"] = time.monotonic()


class NotedBatches:
    """The iterator of a DataLoader, which also notes the batches."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._data: dict[str, list[Any]] = {"batches": [], "samples": []}

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if facts["steps"] == 0:
            latest["data"] = self._data
        if latest.get("data") is self._data:
            note_batch(self._data["batches"], self._data["samples"], batch)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def noted_batches(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """``DataLoader.__iter__``, which notes the batches of one epoch of the training data.

    The first step shows which loader has the training data: the one that gave the last batch.
    """

    @functools.wraps(original)
    def iterate(loader: Any) -> Iterator[Any]:
        batches = original(loader)
        return batches if trains_with_lightning() else NotedBatches(batches)

    return iterate


def note_batch(batches: list[Any], samples: list[str], batch: Any) -> None:
    """Add digests of a batch, with its number of samples, and of its samples."""
    if len(batches) == BATCHES:
        return
    columns = sample_columns(batch)
    size = len(columns[0]) if columns else 0
    batches.append([digest(batch), size])
    if len(samples) + size <= SAMPLES:
        samples += [digest([column[i] for column in columns]) for i in range(size)]


def digest(content: Any) -> str:
    return f"{rehearsal_tensors.digest(content):012x}"


def counted(original: Callable[..., None]) -> Callable[..., None]:
    """``print``, whose calls count from the first step on."""

    @functools.wraps(original)
    def counting(*args: Any, **kwargs: Any) -> None:
        facts["printed"] += facts["steps"] > 0 and kwargs.get("file") in (None, sys.stdout)
        original(*args, **kwargs)

    return counting


def watch_files(base: str, files: list[str]) -> None:
    """Note every file that is opened for writing or renamed, those of a host relative to it.

    The rehearsal's own files, temporary ones among them, are left out.
    """
    run = os.path.dirname(base)  # noqa: PTH120

    def note(path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  links stay links
        if name.startswith(f"{base}/"):
            name = os.path.relpath(name, base)
        elif name.startswith((f"{run}/", *OF_SYSTEM)):
            return
        if name not in files:
            files.append(name)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR):
            note(args[0])
        elif event == "os.rename":
            note(args[1])

    sys.addaudithook(audit)
    # Both write without an audit event: torch.save from C++, safetensors from Rust.
    torch.save = noting(note, torch.save, "f", 1)
    with contextlib.suppress(ImportError):
        import safetensors.torch as safetensors

        safetensors.serialize_file = noting(note, safetensors.serialize_file, "filename", 1)


def noting(
    note: Callable[[Any], None], function: Callable[..., Any], name: str, position: int
) -> Callable[..., Any]:
    """The function, which first notes its path: the argument of this name or position."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        by_position = args[position] if len(args) > position else None
        note(kwargs.get(name, by_position))
        return function(*args, **kwargs)

    return noted


def sample_columns(batch: Any) -> list[torch.Tensor]:
    """The batch's tensors with an item for each sample.

    The most frequent length of its tensors is the number of samples.
    """
    tensors = [item for item in rehearsal_tensors.leaves(batch) if isinstance(item, torch.Tensor)]
    tensors = [item for item in tensors if item.layout == torch.strided and not item.is_nested]
    tensors = [item for item in tensors if item.dim()]
    lengths = Counter(len(tensor) for tensor in tensors).most_common(1)
    return [tensor for tensor in tensors if len(tensor) == lengths[0][0]]
