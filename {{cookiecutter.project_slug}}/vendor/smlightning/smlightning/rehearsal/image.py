"""An environment with the versions of a job's image: its Python, torch and SageMaker's toolkits.

`rehearse --image-versions` goes on in it; the template proves each row of its table of images in
one. PyPI's torch stands for the image's, which AWS builds itself.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path

import smlightning
from smlightning.errors import UserError
from smlightning.launch import archive, requirements
from smlightning.launch.images import Profile
from smlightning.rehearsal.mpirun import OPEN_MPI

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # builds without CUDA, which are far smaller
VENDORED = Path("vendor") / "smlightning"  # the package, in a project that has it
COMPLETE = "complete"  # the file in the environment that holds `contents` of what was installed
NO_VARIABLES: Mapping[str, str] = {}


def image_python(
    image: Profile | None, root: Path, environment: Mapping[str, str] = NO_VARIABLES
) -> Path:
    """The Python of .venv/image-<torch>, which pip fills once, in minutes.

    Args:
        image: what is in the job's image; None where that is not known.
        root: the project's folder.
        environment: the container's, by whose PIP_* variables requirements.txt is installed.

    Raises:
        UserError: the image's versions are not known, or pip cannot install them.
    """
    if image is None:
        problem = "--image-versions: the image's torch is not known here"
        raise UserError(problem, "set image in job.toml to a profile")
    folder = Path(sys.prefix) / f"image-{image.torch}"
    if not is_current(folder, image, root, environment):
        print(f"installing torch {image.torch} into {folder}, which takes minutes", flush=True)
        try:
            create(folder, image, root, environment)
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.strip()]
            reason = lines[-1][:300] if lines else "no message"
            raise UserError(
                f"pip cannot make an environment with torch {image.torch} here ({reason})",
                "rehearse without --image-versions",
            ) from None
    return folder / "bin" / "python"


def contents(image: Profile, root: Path, environment: Mapping[str, str] = NO_VARIABLES) -> str:
    """A digest of what decides which packages belong into the environment."""
    versions = (image.python, image.torch, image.toolkit, image.pytorch_toolkit)
    wanted = requirements.lines(root / "src" / "requirements.txt")
    facts = (versions, smlightning.__version__, wanted, requirements.of_the_job(environment))
    digest = hashlib.sha256(repr(facts).encode())
    vendored = root / VENDORED / "pyproject.toml"
    digest.update(vendored.read_bytes() if vendored.is_file() else b"none")
    return digest.hexdigest()


def is_current(
    folder: Path, image: Profile, root: Path, environment: Mapping[str, str] = NO_VARIABLES
) -> bool:
    """Whether the environment is complete, and was made for these versions and requirements."""
    complete = folder / COMPLETE
    return complete.is_file() and complete.read_text() == contents(image, root, environment)


def create(folder: Path, image: Profile, root: Path, environment: Mapping[str, str]) -> None:
    """Fill the environment: torch, what training and a rehearsal need, the container's entry.

    Raises:
        CalledProcessError: pip has failed.
    """
    made = [python_of(image.python), "-m", "venv", "--without-pip", "--clear", str(folder)]
    run(made, root)
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    install += ["--quiet", "--no-compile"]
    torch = f"torch=={image.torch}"
    from_cpu_index = [*install, "--retries=1", torch, "--index-url", CPU_INDEX]
    try:
        run(from_cpu_index, root)
    except subprocess.CalledProcessError:  # that index is not reached from everywhere
        run([*install, torch], root)
    with tempfile.TemporaryDirectory() as temporary:
        run([*install, torch, *package(root, Path(temporary))], root)
        # As a constraint, since torch has no hash, and pip wants one where the file has some.
        constraint = Path(temporary) / "torch.txt"
        constraint.write_text(torch)
        install_file = [*install, "--constraint", str(constraint), "--requirement"]
        # In src/, as the container does: requirements.txt may name wheels there.
        run([*install_file, "requirements.txt"], root / "src", environment)
    run([*install, *toolkit(image)], root)
    # It pins more than it needs.
    container = f"sagemaker-pytorch-training=={image.pytorch_toolkit or '3.0.0'}"
    run([*install, "--no-deps", container], root)
    add_open_mpi(folder, image)
    (folder / COMPLETE).write_text(contents(image, root, environment))


def package(root: Path, folder: Path) -> list[str]:
    """What pip is asked for as this package: vendor/, or a wheel of what runs, made in a folder.

    It is never asked for by its name, which anybody may give to a package of a public index.
    """
    if (root / VENDORED / "pyproject.toml").is_file():
        return ["--editable", f"{root / VENDORED}[simulation]"]
    installed = distribution(archive.PACKAGE.name)
    metadata = installed.read_text("METADATA") or ""
    wheel = requirements.write_wheel(folder, archive.PACKAGE.name, installed.version, metadata)
    with zipfile.ZipFile(wheel, "a") as file:
        for path in archive.files_below(archive.PACKAGE):
            file.write(path, path.relative_to(archive.PACKAGE.parent))
    return [f"{wheel}[simulation]"]


def toolkit(image: Profile) -> list[str]:
    """What pip is asked for as SageMaker's training toolkit; the newest where that is not known."""
    return [f"sagemaker-training=={image.toolkit}" if image.toolkit else "sagemaker-training"]


def add_open_mpi(folder: Path, image: Profile) -> None:
    """Open MPI next to it, if this environment has it: mpi4py is built for one Python."""
    if not OPEN_MPI.is_dir():
        return
    python = OPEN_MPI / "bin" / "python"
    frozen = [sys.executable, "-m", "pip", "--python", str(python), "freeze", "--quiet"]
    pins = run(frozen, folder).split()
    target = folder / "open-mpi"
    run([python_of(image.python), "-m", "venv", "--without-pip", "--clear", str(target)], folder)
    install = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "install"]
    run([*install, "--quiet", *pins], folder)


def python_of(version: str) -> str:
    """A Python of this minor version; this one where the machine has no other.

    A name on the PATH proves nothing: pyenv's python3.12 exists for every version it ever had.
    """
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in pythons(version):
        with contextlib.suppress(OSError):
            answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True)
            if answer.stdout.strip() == version:
                return candidate
    return sys.executable


def pythons(version: str) -> Iterator[str]:
    """Where a Python of this minor version may be: this one, the PATH, pyenv's, uv's."""
    yield sys.executable
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    pyenv = shutil.which("pyenv") or on_path
    roots = [
        *([Path(pyenv).parent.parent] if pyenv else []),
        Path.home() / ".pyenv",
        *map(Path, filter(None, [os.environ.get("PYENV_ROOT")])),
    ]
    for root in roots:
        yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python")))
    uv = Path.home() / ".local" / "share" / "uv" / "python"
    yield from map(str, sorted(uv.glob(f"cpython-{version}.*/bin/python")))


def run(command: list[str], folder: Path, environment: Mapping[str, str] = NO_VARIABLES) -> str:
    """What the command prints, in a folder, with the PIP_* variables of a container.

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
