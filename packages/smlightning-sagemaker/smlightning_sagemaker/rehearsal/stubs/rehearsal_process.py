"""Notes what a process of a rehearsal does: its steps, batches, files and prints.

torch calls ``watch`` at the end of ``import torch`` (entry point ``torch.backends``), so a script
is observed without a change. rehearsal_recorder.py adds what Lightning's Trainer knows,
rehearsal_plain.py what torch shows of a script without it. The names of the facts are those of
evidence.Rank.
"""

import atexit
import builtins
import contextlib
import errno
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rehearsal_tensors
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

FAULT_STEP = 2  # late enough that every rank is in the middle of training
BATCHES = 500  # of the first epoch: ranks that share data do so from the beginning
SAMPLES = 20_000
# Events of sys.addaudithook whose paths all change.
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
OF_SYSTEM = ("/dev/", "/proc/", "/sys/")

facts: dict[str, Any] = {"files": [], "printed": 0, "steps": 0}


def watch() -> None:
    """Watch this process, if it belongs to a rehearsal's host."""
    if "REHEARSAL_EVIDENCE" not in os.environ:
        return
    facts["host"] = int(os.environ["REHEARSAL_HOST"])
    watch_files(os.environ["REHEARSAL_BASE"], facts["files"])
    # These modules import this one.
    import rehearsal_cpu
    import rehearsal_plain

    facts["on_cpu"] = rehearsal_cpu.noted
    rehearsal_cpu.use_cpu()
    rehearsal_plain.watch()
    register_optimizer_step_post_hook(count_step)
    builtins.print = counted(builtins.print)
    atexit.register(at_exit)


def count_step(optimizer: Any, *_: Any) -> None:
    import rehearsal_plain

    facts["steps"] += 1
    if rehearsal_plain.is_plain():
        rehearsal_plain.note_step(optimizer)


def main_address() -> str:
    """The address at which this process connected to rank 0; empty for a single one."""
    if not dist.is_initialized():
        return ""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


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
    """Note the last files and prints of a rank, and without Lightning its data and weights."""
    import rehearsal_plain

    rehearsal_plain.finish()
    if "rank" in facts:
        save()


def evidence() -> Path:
    return Path(os.environ["REHEARSAL_EVIDENCE"]) / f"rank-{facts['host']}-{os.getpid()}.json"


def save() -> None:
    """Write the facts whole, since the process may be killed at any time."""
    unfinished = evidence().with_suffix(".part")
    unfinished.write_text(json.dumps(facts))
    unfinished.replace(evidence())


def note_batch(batches: list[Any], samples: list[str], batch: Any) -> None:
    """Add digests of a batch, with its number of samples, and of its samples."""
    if len(batches) == BATCHES:
        return
    batches.append([digest(batch), rehearsal_tensors.samples_of(batch)])
    more = rehearsal_tensors.samples(batch)
    if len(samples) + len(more) <= SAMPLES:
        samples += map(digest, more)


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
    mounts = tuple(
        f"{folder}/" for folder in os.environ["REHEARSAL_READ_ONLY"].split(":") if folder
    )

    def reject_in_mount(name: str) -> None:
        if f"{name}/".startswith(mounts):
            problem = "SageMaker mounts this channel read-only (input_mode FastFile, or ro)"
            raise OSError(errno.EROFS, problem, name)

    def note(path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  links stay links
        reject_in_mount(name)
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
        if event in CHANGES and mounts:
            for path in args:
                if isinstance(path, str | bytes | os.PathLike):
                    reject_in_mount(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100

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
