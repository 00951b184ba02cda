"""Runs code in processes forked from the server of `smlightning_sagemaker.testing.processes`.

They start ten times as fast, since the server has imported torch and Lightning. Each process has
its own environment, output, signals and exit status.
"""

import atexit
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from smlightning_sagemaker.testing import owner, processes
from smlightning_sagemaker.testing.environment import of_tests


@dataclass(frozen=True)
class Rank:
    """A process that runs some code."""

    process: BaseProcess
    log: Path

    def wait(self, seconds: float) -> tuple[int, str]:
        """Exit status (negative: the signal that ended it) and everything it wrote."""
        self.process.join(seconds)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.log.read_text()}")
        return status, self.log.read_text()


def wait_for_all(ranks: Sequence[Rank], seconds: float) -> tuple[tuple[int, ...], list[str]]:
    """Exit statuses of ranks that end together, and what each wrote.

    Raises AssertionError with everything that all of them wrote if one is still running.
    """
    for rank in ranks:
        rank.process.join(seconds)
    running = [number for number, rank in enumerate(ranks) if rank.process.exitcode is None]
    for number in running:
        ranks[number].process.kill()
    said = [rank.log.read_text() for rank in ranks]
    assert not running, f"{running} still running after {seconds} s:\n" + "\n".join(said)
    return tuple(int(rank.process.exitcode or 0) for rank in ranks), said


def run_on_ranks(
    code: str, folder: Path, environment: Mapping[str, str], world_size: int, *arguments: str
) -> list[str]:
    """Run `code` on ranks of one host, with torchrun's variables; what each rank wrote.

    Raises AssertionError with what all of them wrote if one fails.
    """
    port = processes.free_port()
    ranks = []
    for rank in range(world_size):
        variables = {**environment, **processes.torchrun_variables(rank, world_size, port)}
        ranks.append(start(code, folder / f"log-{rank}", variables, *arguments))
    statuses, said = wait_for_all(ranks, processes.SECONDS)
    assert not any(statuses), said
    return said


def start(code: str, log: Path, environment: Mapping[str, str], *arguments: str) -> Rank:
    """Run `code` as `python -c` would, with PYTHONPATH and all other variables of `environment`."""
    processes.start_server()
    work = (code, str(log), dict(environment), arguments)
    process = processes.CONTEXT.Process(target=_run, args=work)
    process.start()
    return Rank(process, log)


def start_ranks(
    code: str,
    folder: Path,
    world_size: int,
    *arguments: str,
    hosts: int = 1,
    absent: int | None = None,
    **more: str,
) -> list[Rank]:
    """Start the ranks of a job with torchrun's variables, and SageMaker's of several hosts.

    Args:
        folder: of each rank's ``log0``, and its ``output0`` with a failure file.
        absent: a rank that is not started.
        more: variables of all ranks.
    """
    folder.mkdir(exist_ok=True)
    local_world_size = world_size // hosts
    shared = {
        **of_tests(os.environ),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(processes.free_port()),
        **more,
    }
    if hosts > 1:
        shared["SM_HOSTS"] = json.dumps([f"algo-{number + 1}" for number in range(hosts)])
    ranks = []
    for rank in range(world_size):
        output = folder / f"output{rank}"
        output.mkdir()
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % local_world_size)}
        own["SM_OUTPUT_DIR"] = str(output)
        if rank != absent:
            ranks.append(start(code, folder / f"log{rank}", shared | own, *arguments))
    return ranks


def _run(code: str, log: str, environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["-c", *arguments]
    processes.fork_workers()
    for name in owner.MODULES:  # the server's are of the checkout: PYTHONPATH may name a project
        sys.modules.pop(name, None)
    try:
        exec(code, {"__name__": "__main__"})  # noqa: S102  the test's own
    finally:
        # As at the end of `python -c`; a process of multiprocessing runs no exit handler. After a
        # failure this ends the process, before it would wait for a loader's worker.
        atexit._run_exitfuncs()
