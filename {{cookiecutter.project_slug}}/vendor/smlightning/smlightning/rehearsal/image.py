"""For ``--image-versions``: an environment with the torch of the job's image, and its Python."""

import contextlib
import subprocess
import sys
from pathlib import Path

from smlightning.errors import UserError
from smlightning.rehearsal.plan import Image

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # builds without CUDA, which are far smaller
CONTAINER = "sagemaker-pytorch-training==3.0.0"  # pins more than it needs: without dependencies
VENDORED = Path("vendor") / "smlightning"  # the package, in a project that has it
COMPLETE = "complete"  # the file in the environment that says that all is installed


def image_python(image: Image, root: Path) -> Path:
    """The Python of .venv/image-<torch>, which pip fills once, in minutes.

    Args:
        root: the project's folder.

    Raises:
        UserError: the image's versions are not known, or pip cannot install them.
    """
    if not image.torch:
        problem = "--image-versions: the image's torch is not known here"
        raise UserError(problem, "set image in job.toml to a profile")
    folder = Path(sys.prefix) / f"image-{image.torch}"
    if not is_current(folder, root):
        print(f"installing torch {image.torch} into {folder}, which takes minutes", flush=True)
        try:
            create(folder, image, root)
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.strip()]
            reason = lines[-1][:300] if lines else "no message"
            raise UserError(
                f"pip cannot make an environment with torch {image.torch} here ({reason})",
                "rehearse without --image-versions",
            ) from None
        (folder / COMPLETE).touch()
    return folder / "bin" / "python"


def is_current(folder: Path, root: Path) -> bool:
    """Whether the environment is complete, and newer than what says what belongs into it."""
    complete = folder / COMPLETE
    if not complete.is_file():
        return False
    sources = [root / "src" / "requirements.txt", root / "pyproject.toml"]
    vendored = root / VENDORED / "pyproject.toml"
    if vendored.is_file():
        sources.append(vendored)
    return complete.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def create(folder: Path, image: Image, root: Path) -> None:
    """Fill the environment: torch, what training and a rehearsal need, the container's entry.

    Raises:
        CalledProcessError: pip has failed.
    """
    venv = ["-m", "venv", "--without-pip", "--clear", str(folder)]
    # With another Python it still has the image's torch.
    run_first([[f"python{image.python}", *venv], [sys.executable, *venv]], root)
    python = str(folder / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    torch = f"torch=={image.torch}"
    from_cpu_index = [*install, "--retries=1", torch, "--index-url", CPU_INDEX]
    run_first([from_cpu_index, [*install, torch]], root)
    if (root / VENDORED / "pyproject.toml").is_file():  # else an index has the package
        run_first([[*install, torch, "--editable", str(VENDORED)]], root)
    needed = ["--group", "rehearsal", "--requirement", "src/requirements.txt"]
    run_first([[*install, torch, *needed]], root)
    run_first([[*install, "--no-deps", CONTAINER]], root)
    link_open_mpi(folder)


def link_open_mpi(folder: Path) -> None:
    """Open MPI of this environment, if both have the same Python: mpi4py is built for one."""
    open_mpi = Path(sys.prefix) / "open-mpi"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if open_mpi.is_dir() and (folder / "lib" / version).is_dir():
        (folder / "open-mpi").symlink_to(open_mpi)


def run_first(commands: list[list[str]], folder: Path) -> None:
    """Run the commands in turn until one succeeds.

    Raises:
        CalledProcessError: the last one has failed.
    """
    for command in commands:
        with contextlib.suppress(OSError):  # no such Python
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if ended.returncode == 0:
                return
    ended.check_returncode()
