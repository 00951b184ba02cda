"""SageMaker's PyTorch container for hosts that share one machine: a few of its parts give way, the rest is its own.

As SAGEMAKER_TRAINING_MODULE it moves the port 7777 if that is taken. On one host it leaves out what is there for
others: an SSH server, and half a minute in which they would see that the job has ended. Where mpirun cannot run, it
starts what mpirun would start on this host, with Open MPI's variables. As a script it is that replacement of mpirun:
`python rehearsal_container.py PROCESSES COMMAND…`.
"""

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
        """One host's share of an mpirun job: the toolkit's own command, without sshd, mpirun and ``-m mpi4py``.

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
    """Run `processes` copies, ranks numbered host by host; the first to fail ends the others, as mpirun does."""
    hosts = json.loads(os.environ["SM_HOSTS"])
    first = hosts.index(os.environ["SM_CURRENT_HOST"]) * processes
    children: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for local_rank in range(processes):
            variables = {"RANK": first + local_rank, "SIZE": len(hosts) * processes, "LOCAL_RANK": local_rank}
            variables["LOCAL_SIZE"] = processes
            mpi = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in variables.items()}
            children.append(subprocess.Popen(command, env=os.environ | mpi))
        while True:
            codes = [child.poll() for child in children]
            for local_rank, code in enumerate(codes):
                if code:
                    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
                    host = os.environ["SM_CURRENT_HOST"]
                    print(f"RuntimeError: rank {first + local_rank} on host {host} ended with {how}", file=sys.stderr)
                    return 1
            if all(code == 0 for code in codes):
                return 0
            time.sleep(0.05)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()


if __name__ == "__main__":
    sys.exit(spawn(int(sys.argv[1]), sys.argv[2:]))
