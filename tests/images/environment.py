"""An environment with the versions of an image: its Python, torch and SageMaker's toolkits.

It holds PyPI's torch in place of the image's, which AWS builds itself.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from isolation import listed
from smlightning_sagemaker.job.images import Profile
from smlightning_sagemaker.rehearsal.mpirun import OPEN_MPI

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # builds without CUDA, which are far smaller
COMPLETE = "complete"  # the file in a complete environment, with the digest of its contents


def image_python(image: Profile, project: Path) -> Path:
    """The Python of .venv/image-<torch>, which pip fills once, in minutes."""
    folder = Path(sys.prefix) / f"image-{image.torch}"
    complete = folder / COMPLETE
    digest = contents(image, project)
    if not complete.is_file() or complete.read_text() != digest:
        print(f"installing torch {image.torch} into {folder}, which takes minutes", flush=True)
        fill(folder, image, project)
        complete.write_text(digest)
    return folder / "bin" / "python"


def contents(image: Profile, project: Path) -> str:
    """A digest of all versions, requirements and wheels."""
    digest = hashlib.sha256(repr(image).encode())
    for path in (project / "src" / "requirements.txt", *(project / "tools").glob("*.whl")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def fill(folder: Path, image: Profile, project: Path) -> None:
    """Install torch, what src/ requires, the tools' packages, and the container's toolkits.

    Raises:
        CalledProcessError: pip has failed.
    """
    install = new_environment(folder, image)
    torch = f"torch=={image.torch}"
    try:
        run([*install, "--retries=1", torch, "--index-url", CPU_INDEX], project)
    except subprocess.CalledProcessError:  # not every network reaches that index
        run([*install, torch], project)
    run([*install, "--requirement", "requirements.txt"], project / "src")
    (tools,) = (project / "tools").glob("*.whl")
    run([*install, f"{tools}[rehearsal,testing]"], project)
    run([*install, f"sagemaker-training=={image.toolkit}"], project)
    # Without its own dependencies, of which it pins too many.
    container = f"sagemaker-pytorch-training=={image.pytorch_toolkit}"
    run([*install, "--no-deps", container], project)
    if OPEN_MPI.is_dir():  # again, since mpi4py is built for one Python
        freeze = [sys.executable, "-m", "pip", "--python", str(OPEN_MPI / "bin" / "python")]
        pins = run([*freeze, "freeze", "--quiet"], folder).split()
        run([*new_environment(folder / "open-mpi", image), *pins], folder)


def new_environment(folder: Path, image: Profile) -> list[str]:
    """Make an empty environment with the image's Python; the command by which pip fills it."""
    run([python_of(image.python), "-m", "venv", "--without-pip", "--clear", str(folder)], Path())
    python = str(folder / "bin" / "python")
    return [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]


def python_of(version: str) -> str:
    """A Python of this minor version: this one, the PATH's, pyenv's, uv's; else this one.

    Each candidate is started: pyenv's python3.12 exists for every version it ever had.
    """
    candidates = [sys.executable, f"python{version}"]
    for pattern in (f".pyenv/versions/{version}.*", f".local/share/uv/python/cpython-{version}.*"):
        candidates += map(str, sorted(Path.home().glob(f"{pattern}/bin/python")))
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        with contextlib.suppress(OSError):
            answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True)
            if answer.stdout.strip() == version:
                return candidate
    return sys.executable


def run(command: list[str], folder: Path) -> str:
    """The output of a command in a folder, without this machine's settings of pip.

    Raises:
        CalledProcessError: it has failed.
    """
    ended = subprocess.run(
        command, cwd=folder, env=listed(os.environ), capture_output=True, text=True, check=True
    )
    return ended.stdout
