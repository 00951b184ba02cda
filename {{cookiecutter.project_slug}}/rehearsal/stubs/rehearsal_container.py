"""SAGEMAKER_TRAINING_MODULE of a rehearsal: SageMaker's PyTorch container, adapted to hosts that share one machine.

It changes the port where 7777 is taken. On one host it leaves out what serves other hosts: an SSH server, and half a
minute in which they would notice the end of the job. Where mpirun cannot run, `mpirun_stub.py` takes its place.
"""

import os
import shutil
import sys
import types
from pathlib import Path


def main() -> None:
    """The entry that sagemaker-training calls on each host."""
    from sagemaker_pytorch_container import training
    from sagemaker_training import mpi, process, smdataparallel, torch_distributed

    training.MASTER_PORT = torch_distributed.MASTER_PORT = os.environ["REHEARSAL_PORT"]

    class WithoutMpirun(process.ProcessRunner):  # type: ignore[misc]
        """The toolkit's own command under `mpirun_stub.py`, without sshd and ``-m mpi4py``.

        mpi4py loads MPI, which aborts a process that no mpirun started.
        """

        def __init__(self, entry_point: str, args: list[str], env: dict[str, str], processes: int, *_: object) -> None:
            super().__init__(entry_point, args, env, processes)

        def _create_command(self) -> list[str]:
            mpirun = [sys.executable, str(Path(__file__).with_name("mpirun_stub.py")), str(self._processes_per_host)]
            smddprun = ["smddprun"] if shutil.which("smddprun") else []
            return [*mpirun, *smddprun, *super()._create_command()]

    if os.environ.get("REHEARSAL_WITHOUT_MPIRUN"):
        smdataparallel.SMDataParallelRunner = mpi.WorkerRunner = WithoutMpirun
    elif os.environ.get("REHEARSAL_SINGLE_HOST"):
        smdataparallel._start_sshd_daemon = lambda: None
        smdataparallel.time = types.SimpleNamespace(sleep=lambda _: None)
    training.main()
