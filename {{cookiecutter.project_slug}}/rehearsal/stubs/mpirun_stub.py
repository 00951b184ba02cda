"""SageMaker's PyTorch container for hosts that share one machine, and a stub of mpirun.

As SAGEMAKER_TRAINING_MODULE it changes the port where 7777 is taken. On one host it leaves out what serves other
hosts: an SSH server, and half a minute in which they would notice the end of the job. Where mpirun cannot run,
`python mpirun_stub.py PROCESSES COMMAND…` takes its place: it starts what Open MPI would start on this host.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types


def main() -> None:
    """The entry that sagemaker-training calls on each host."""
    from sagemaker_pytorch_container import training
    from sagemaker_training import mpi, process, smdataparallel, torch_distributed

    training.MASTER_PORT = torch_distributed.MASTER_PORT = os.environ["REHEARSAL_PORT"]

    class WithoutMpirun(process.ProcessRunner):  # type: ignore[misc]
        """The toolkit's own command under `spawn`, without sshd and ``-m mpi4py``.

        mpi4py loads MPI, which aborts a process that no mpirun started.
        """

        def __init__(self, entry_point: str, args: list[str], env: dict[str, str], processes: int, *_: object) -> None:
            super().__init__(entry_point, args, env, processes)

        def _create_command(self) -> list[str]:
            smddprun = ["smddprun"] if shutil.which("smddprun") else []
            return [sys.executable, __file__, str(self._processes_per_host), *smddprun, *super()._create_command()]

    if os.environ.get("REHEARSAL_WITHOUT_MPIRUN"):
        smdataparallel.SMDataParallelRunner = mpi.WorkerRunner = WithoutMpirun
    elif os.environ.get("REHEARSAL_SINGLE_HOST"):
        smdataparallel._start_sshd_daemon = lambda: None
        smdataparallel.time = types.SimpleNamespace(sleep=lambda _: None)
    training.main()


def spawn(processes: int, command: list[str]) -> int:
    """Run `processes` copies, ranks numbered host by host; the first to fail ends the others, as under mpirun."""
    hosts, own = json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]
    first = hosts.index(own) * processes
    children: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for local_rank in range(processes):
            numbers = {"RANK": first + local_rank, "SIZE": len(hosts) * processes}
            numbers |= {"LOCAL_RANK": local_rank, "LOCAL_SIZE": processes}
            mpi = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in numbers.items()}
            children.append(subprocess.Popen(command, env=os.environ | mpi))
        while None in (codes := [child.poll() for child in children]) and not any(codes):
            time.sleep(0.05)
        for rank, code in enumerate(codes, first):
            if code:
                how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
                print(f"RuntimeError: rank {rank} on host {own} ended with {how}", file=sys.stderr)
                return 1
        return 0
    finally:
        for child in children:
            child.terminate()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            child.kill()


if __name__ == "__main__":
    sys.exit(spawn(int(sys.argv[1]), sys.argv[2:]))
