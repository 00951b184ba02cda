"""For `--image-versions`: an environment beside this one with the image's torch, and where it is here its Python."""

import contextlib
import subprocess
import sys
from pathlib import Path

from launch import ROOT
from runtime.report import UserError

CPU = "https://download.pytorch.org/whl/cpu"  # builds without CUDA, which are far smaller
TOOLKIT = ["--group", "rehearsal", "--requirement", "src/requirements.txt"]


def environment(torch: str, python: str) -> Path:
    """The environment's Python, .venv/image-<torch>/bin/python; pip makes it once, in minutes.

    Raises:
        UserError: the image's versions are not known, or pip cannot make it.
    """
    if not torch:
        raise UserError("--image-versions: the image's torch is not known here; set image in job.toml to a profile")
    home = Path(sys.prefix) / f"image-{torch}"
    own = home / "bin" / "python"
    asked = (ROOT / "src" / "requirements.txt", ROOT / "pyproject.toml")
    if (made := home / "made").is_file() and made.stat().st_mtime > max(path.stat().st_mtime for path in asked):
        return own
    print(f"making {home} with torch {torch}, which takes minutes", flush=True)
    pip = [sys.executable, "-m", "pip", "--python", str(own), "install", "--quiet"]
    venv = ["-m", "venv", "--without-pip", "--clear", str(home)]
    try:
        first([f"python{python}", *venv], [sys.executable, *venv])  # another Python still has the image's torch
        first([*pip, "--retries=1", f"torch=={torch}", "--index-url", CPU], [*pip, f"torch=={torch}"])
        first([*pip, f"torch=={torch}", *TOOLKIT])
        first([*pip, "--no-deps", "sagemaker-pytorch-training==3.0.0"])
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        cure = "rehearse without --image-versions"
        raise UserError(f"pip cannot make an environment with torch {torch} here ({said[0][:300]}); {cure}") from None
    mpi, version = Path(sys.prefix) / "open-mpi", f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    if mpi.is_dir() and (home / version).is_dir():  # mpi4py is built for one Python
        (home / "open-mpi").symlink_to(mpi)
    made.touch()
    return own


def first(*commands: list[str]) -> None:
    """Run the commands in turn until one succeeds; raises CalledProcessError if the last one does not."""
    for command in commands:
        with contextlib.suppress(OSError):  # no such Python
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode == 0:
                return
    done.check_returncode()
