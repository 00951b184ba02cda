"""Ranks as processes of this machine over gloo, with the variables of torchrun.

A server that has imported torch, Lightning and the project's files forks them, since imports take
longer than most test runs. Each process has its own output, exit status and variables.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from smlightning_sagemaker.rehearsal import ports
from smlightning_sagemaker.testing import environment

if sys.platform == "win32":
    CONTEXT = multiprocessing.get_context("spawn")
else:
    CONTEXT = multiprocessing.get_context("forkserver")
SECONDS = 300  # limit for the slowest run on a busy machine
CLAIMED_PORTS = contextlib.ExitStack()

Record = dict[str, Any]
Body = Callable[[Callable[[Record], Any]], None]
"""The work of a rank: a function of a function that writes the rank's record."""


def start_server() -> None:
    """Start the process that forks the ranks; a second call changes nothing."""
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver

    CONTEXT.set_forkserver_preload(["smlightning_sagemaker.testing.preload"])
    # The server imports from PYTHONPATH: before Python 3.12 it does not inherit sys.path.
    variables = {**environment.of_tests(os.environ), "PYTHONPATH": os.pathsep.join(sys.path)}
    with mock.patch.dict(os.environ, variables, clear=True):
        forkserver.ensure_running()


def free_port() -> int:
    """A free port, claimed until this process ends."""
    return CLAIMED_PORTS.enter_context(ports.claimed())


def run_ranks(body: Body, folder: Path, world_size: int, expected_exit: int = 0) -> list[Record]:
    """Run ``body`` on each rank in ``folder``; returns their records, with the output as ``log``.

    Raises:
        AssertionError: a rank does not end with ``expected_exit``, or within SECONDS.
    """
    start_server()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    processes = []
    for rank in range(world_size):
        variables = torchrun_variables(rank, world_size, port)
        process = CONTEXT.Process(target=_run_rank, args=(body, folder, rank, variables))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
    allowed = {expected_exit}
    if expected_exit < 0 and any(process.exitcode == expected_exit for process in processes):
        allowed.add(1)  # a rank that noticed another one's end before its own kill
    return [_result(folder, rank, process, allowed) for rank, process in enumerate(processes)]


def torchrun_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for a rank of one host; none for a single rank."""
    variables: dict[str, Any] = {"OMP_NUM_THREADS": 1, "PYTHONUTF8": 1}
    if world_size > 1:
        variables.update(
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=world_size,
            LOCAL_WORLD_SIZE=world_size,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
    return {name: str(value) for name, value in variables.items()}


def _result(folder: Path, rank: int, process: BaseProcess, allowed: set[int]) -> Record:
    record = json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
    record["log"] = (folder / f"rank-{rank}.log").read_text(encoding="utf-8")
    assert process.exitcode in allowed, (
        f"rank {rank} ended with {process.exitcode}; expected {allowed}\n{record['log']}"
    )
    return record


def _run_rank(body: Body, folder: Path, rank: int, variables: dict[str, str]) -> None:
    """Run one rank in the common folder, with its own output and variables."""
    os.environ.update(variables)
    os.chdir(folder)
    fork_workers()
    _write_output_to(f"rank-{rank}.log")
    record = Path(f"rank-{rank}.json")
    record.write_text("{}", encoding="utf-8")
    try:
        body(lambda seen: record.write_text(json.dumps(seen), encoding="utf-8"))
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    for worker in multiprocessing.active_children():  # persistent workers of loaders
        worker.kill()
        worker.join()
    os._exit(status)  # without exit handlers of imported modules


def fork_workers() -> None:
    """Let this process fork a loader's workers, as a process that no server started does.

    Otherwise another server would start them, import torch for each, and outlive this process.
    """
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)


def _write_output_to(name: str) -> None:
    """Send standard output and error of this process and its children to a file."""
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115


KILLED = -int(getattr(signal, "SIGKILL", 9))
"""Exit status of a rank that SIGKILL ended."""
