"""An environment with the versions of a job's image: its Python, torch and SageMaker's toolkits.

`rehearse --image-versions` runs in it; CI proves each row of the table of images in one. It holds
PyPI's torch in place of the image's, which AWS builds itself.
"""

import contextlib
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import smlightning
from smlightning.errors import UserError
from smlightning_sagemaker.job.images import Profile
from smlightning_sagemaker.preflight import requirements
from smlightning_sagemaker.rehearsal.mpirun import OPEN_MPI

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # builds without CUDA, which are far smaller
VENDORED = Path("vendor") / "smlightning"  # the package, in a project
COMPLETE = "complete"  # the file in a complete environment, with the digest of its contents
NO_VARIABLES: Mapping[str, str] = {}


def image_python(
    image: Profile | None, root: Path, environment: Mapping[str, str] = NO_VARIABLES
) -> Path:
    """The Python of .venv/image-<torch>, which pip fills once, in minutes.

    Args:
        image: versions in the job's image; None if they are unknown.
        root: the project's folder.
        environment: the container's, whose PIP_* variables apply to requirements.txt.

    Raises:
        UserError: the image's versions are unknown, or pip cannot install them.
    """
    if image is None or image.toolkit is None:
        problem = "--image-versions: the versions in the job's image are unknown"
        raise UserError(problem, "set image in job.toml to a profile")
    folder = Path(sys.prefix) / f"image-{image.torch}"
    if not is_current(folder, image, root, environment):
        print(f"installing torch {image.torch} into {folder}, which takes minutes", flush=True)
        try:
            create(folder, image, root, environment)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip() or "no message").splitlines()[-1]
            raise UserError(
                f"pip cannot make an environment with torch {image.torch} here ({reason[:300]})",
                "rehearse without --image-versions",
            ) from None
    return folder / "bin" / "python"


def contents(image: Profile, root: Path, environment: Mapping[str, str] = NO_VARIABLES) -> str:
    """A digest of all versions, requirements and settings of pip."""
    versions = (image.python, image.torch, image.toolkit, image.pytorch_toolkit)
    wanted = requirements.lines(root / "src" / "requirements.txt")
    facts = (versions, smlightning.__version__, wanted, requirements.of_the_job(environment))
    digest = hashlib.sha256(repr(facts).encode())
    digest.update((root / VENDORED / "pyproject.toml").read_bytes())
    return digest.hexdigest()


def is_current(
    folder: Path, image: Profile, root: Path, environment: Mapping[str, str] = NO_VARIABLES
) -> bool:
    """Whether pip has filled the environment with these versions and requirements."""
    complete = folder / COMPLETE
    return complete.is_file() and complete.read_text() == contents(image, root, environment)


def create(folder: Path, image: Profile, root: Path, environment: Mapping[str, str]) -> None:
    """Install torch, the packages of training and of a rehearsal, and the container's toolkits.

    Raises:
        CalledProcessError: pip has failed.
    """
    install = [*new_environment(folder, image), "--no-compile"]
    torch = f"torch=={image.torch}"
    try:
        run([*install, "--retries=1", torch, "--index-url", CPU_INDEX], root)
    except subprocess.CalledProcessError:  # not every network reaches that index
        run([*install, torch], root)
    # From vendor/, never by its name, which anybody may give to a package of a public index.
    run([*install, torch, "--editable", f"{root / VENDORED}[simulation]"], root)
    with tempfile.TemporaryDirectory() as temporary:
        # As a constraint, since torch has no hash, and pip wants one where the file has some.
        constraint = Path(temporary) / "torch.txt"
        constraint.write_text(torch)
        install_file = [*install, "--constraint", str(constraint), "--requirement"]
        # In src/, as in the container: requirements.txt may name wheels there.
        run([*install_file, "requirements.txt"], root / "src", environment)
    run([*install, f"sagemaker-training=={image.toolkit}"], root)
    # Without its own dependencies, of which it pins too many.
    container = f"sagemaker-pytorch-training=={image.pytorch_toolkit}"
    run([*install, "--no-deps", container], root)
    if OPEN_MPI.is_dir():  # again, since mpi4py is built for one Python
        freeze = [sys.executable, "-m", "pip", "--python", str(OPEN_MPI / "bin" / "python")]
        pins = run([*freeze, "freeze", "--quiet"], folder).split()
        run([*new_environment(folder / "open-mpi", image), *pins], folder)
    (folder / COMPLETE).write_text(contents(image, root, environment))


def new_environment(folder: Path, image: Profile) -> list[str]:
    """Make an empty environment with the image's Python; the command by which pip fills it."""
    run([python_of(image.python), "-m", "venv", "--without-pip", "--clear", str(folder)], Path())
    python = str(folder / "bin" / "python")
    return [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]


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


def run(command: list[str], folder: Path, environment: Mapping[str, str] = NO_VARIABLES) -> str:
    """The output of a command in a folder, with the PIP_* variables of a container.

    Raises:
        CalledProcessError: it has failed.
    """
    ended = subprocess.run(
        command,
        cwd=folder,
        env=requirements.variables(environment, requirements.route()),  # no constraint of this pip
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout
