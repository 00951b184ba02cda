"""A real mpirun for a rehearsal on one host: whether it runs here, and its mounts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# mpirun and mpi4py in an environment of their own, which the Makefile installs: next to torch
# they would abort a stock Trainer() without mpirun.
OPEN_MPI = Path(sys.prefix) / "open-mpi"
LAUNCHED = ("smddp", "pytorchddp")  # distributions that use mpirun

# The library that the toolkit preloads reads /opt/ml whatever SAGEMAKER_BASE_DIR says. A tmpfs with
# all of /opt bound into it makes room for it without touching the disk.
MOUNT = """
mkdir "$1/opt"; mount --rbind /opt "$1/opt"; mount -t tmpfs none /opt; mkdir /opt/ml
for old in "$1"/opt/*; do
  new="/opt/${old##*/}"
  if [ -d "$old" ] && [ "$new" != /opt/ml ]; then mkdir "$new"; mount --rbind "$old" "$new"; fi
done
mount --bind "$2" /opt/ml
shift 2; exec "$@"
"""


def why_not(hosts: int) -> str:
    """Reason why a real mpirun cannot start this number of hosts here; empty if it can."""
    if hosts > 1:
        return "several hosts would need an sshd on each"
    if not (OPEN_MPI / "bin" / "mpirun").is_file():
        return f"{OPEN_MPI} holds no Open MPI; make rehearse installs it where there is a wheel"
    if not shutil.which("unshare"):
        return "unshare is not installed"
    command = ["timeout", "30", *_unshare("mount --bind /tmp /opt")]
    probe = subprocess.run(command, capture_output=True)
    return "" if probe.returncode == 0 else "this user may not mount"


def with_opt_ml(run: Path, base: Path, command: list[str]) -> list[str]:
    """The command with ``base`` mounted as /opt/ml; mounts and processes end with it."""
    return _unshare(MOUNT, str(run), str(base), *command)


def variables() -> dict[str, str]:
    """Variables by which Open MPI and mpi4py are found outside the linker's paths."""
    library = OPEN_MPI / "lib" / "libmpi.so.40"
    return {"MPI4PY_LIBMPI": str(library), "OPAL_PREFIX": str(OPEN_MPI)}


def python_paths() -> list[Path]:
    """Folders with mpi4py."""
    return list((OPEN_MPI / "lib").glob("python*/site-packages"))


def _unshare(script: str, *arguments: str) -> list[str]:
    """A shell script whose mounts and processes are its own and end with it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    apart = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    apart += ["--propagation", "private"]
    return ["unshare", *user, *apart, "sh", "-ec", script, "sh", *arguments]
