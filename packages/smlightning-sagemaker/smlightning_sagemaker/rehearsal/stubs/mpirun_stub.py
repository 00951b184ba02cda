"""SageMaker's PyTorch container for hosts that share one machine, and a stub of mpirun.

As SAGEMAKER_TRAINING_MODULE it changes the port if 7777 is in use, and quotes paths with spaces,
which a container has not, for the toolkit's shell. On one host it skips the parts for other hosts:
an SSH server, and half a minute in which they would notice the job's end. If mpirun cannot run,
``python mpirun_stub.py PROCESSES COMMAND…`` starts the processes that Open MPI would start here.
"""

import contextlib
import inspect
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from typing import NoReturn


def main() -> None:
    """The entry that sagemaker-training calls on each host."""
    from sagemaker_pytorch_container import training
    from sagemaker_training import mpi, process, smdataparallel, torch_distributed

    python = word(sys.executable)
    process.python_executable = lambda: python
    port = os.environ["REHEARSAL_PORT"]
    training.MASTER_PORT = port
    torch_distributed.MASTER_PORT = port
    if os.environ.get("REHEARSAL_WITHOUT_MPIRUN"):
        runner = runner_without_mpirun()
        smdataparallel.SMDataParallelRunner = runner
        mpi.WorkerRunner = runner
    elif os.environ.get("REHEARSAL_SINGLE_HOST"):
        smdataparallel._start_sshd_daemon = lambda: None
        smdataparallel.time = types.SimpleNamespace(sleep=lambda _: None)
    training.main()


def word(path: str) -> str:
    """A path as a word of the toolkit's command, which toolkits before 5.1.3 give to a shell."""
    from sagemaker_training import process

    uses_shell = "create_subprocess_shell" in inspect.getsource(process.run_async)
    return shlex.quote(path) if uses_shell else path


def runner_without_mpirun() -> type:
    """The toolkit's own command under `spawn`, without sshd and ``-m mpi4py``.

    mpi4py loads MPI, which aborts a process that no mpirun started.
    """
    from sagemaker_training import process

    class WithoutMpirun(process.ProcessRunner):  # type: ignore[misc]
        def __init__(
            self, entry_point: str, args: list[str], env: dict[str, str], processes: int, *_: object
        ) -> None:
            super().__init__(entry_point, args, env, processes)

        def _create_command(self) -> list[str]:
            smddprun = ["smddprun"] if shutil.which("smddprun") else []
            spawned = [*self._python_command(), word(__file__), str(self._processes_per_host)]
            return [*spawned, *smddprun, *super()._create_command()]

    return WithoutMpirun


def spawn(processes: int, command: list[str]) -> int:
    """Run a copy per rank, numbered host by host; the first to fail ends the others."""
    hosts = json.loads(os.environ["SM_HOSTS"])
    host = os.environ["SM_CURRENT_HOST"]
    first = hosts.index(host) * processes
    children: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, exit_as_terminated)
    try:
        for local_rank in range(processes):
            variables = {
                "OMPI_COMM_WORLD_RANK": first + local_rank,
                "OMPI_COMM_WORLD_SIZE": len(hosts) * processes,
                "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
                "OMPI_COMM_WORLD_LOCAL_SIZE": processes,
            }
            texts = {name: str(value) for name, value in variables.items()}
            children.append(subprocess.Popen(command, env={**os.environ, **texts}))
        for rank, code in enumerate(exit_codes(children), first):
            if code:
                end = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"{code}"
                print(f"RuntimeError: rank {rank} on host {host} ended with {end}", file=sys.stderr)
                return 1
        return 0
    finally:
        for child in children:
            child.terminate()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            child.kill()


def exit_as_terminated(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def exit_codes(children: "list[subprocess.Popen[bytes]]") -> list[int | None]:
    """All exit codes, once all have ended or one has failed; None for a running process."""
    while True:
        codes = [child.poll() for child in children]
        if None not in codes or any(codes):
            return codes
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(spawn(int(sys.argv[1]), sys.argv[2:]))
