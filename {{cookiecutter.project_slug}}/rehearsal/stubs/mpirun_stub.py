"""Stub of mpirun: `python mpirun_stub.py PROCESSES COMMAND…` starts what Open MPI would start on this host."""

import json
import os
import signal
import subprocess
import sys
import time


def main(processes: int, command: list[str]) -> int:
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
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
