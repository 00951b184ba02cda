"""Generated projects to test, and tools of this machine that a test may need."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter
from safetensors.numpy import load_file

import checkout
from smlightning_sagemaker.testing.environment import of_tests

TEMPLATE = Path(__file__).parents[2]
ENVIRONMENT = Path(sys.prefix)


@dataclass(frozen=True)
class Project:
    """A generated project. It runs with the packages of this checkout.

    A test compares them with the project's wheels, file by file.
    """

    path: Path

    def environment(self, *paths: str | Path, **variables: str) -> dict[str, str]:
        """Variables of a process outside any job that imports from ``paths`` and the package."""
        clean = of_tests(os.environ)
        clean.pop("SMLIGHTNING_PROJECT", None)  # of the tests that run from the checkout
        given = [*map(str, paths), *filter(None, [variables.pop("PYTHONPATH", "")])]
        path = os.pathsep.join([*given, *map(str, checkout.PACKAGES)])
        return {**clean, "PYTHONUTF8": "1", "PYTHONPATH": path, **variables}

    def run(
        self, *command: str, check: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder; `python` is this environment's."""
        ended = subprocess.run(
            [sys.executable if word == "python" else word for word in command],
            cwd=self.path,
            env=self.environment(**variables),
            text=True,
            capture_output=True,
            check=False,
        )
        if check and ended.returncode:
            line = f"{' '.join(command)} ended with {ended.returncode}"
            raise AssertionError(f"{line}\n{ended.stdout}\n{ended.stderr}")
        return ended

    def make(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run make in this environment, where everything is installed already."""
        installed = []
        for name in ("train", "tools", "notebook", "dev", "lock", "update"):
            installed += ["-o", f"{ENVIRONMENT}/.{name}"]
        return self.run("make", *words, f"VENV={ENVIRONMENT}", *installed, check=check)

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")


def bake(directory: Path, **answers: object) -> Project:
    """Generate a project with these answers and defaults for the rest."""
    path = cookiecutter(
        str(TEMPLATE), no_input=True, output_dir=str(directory), extra_context=answers
    )
    return Project(Path(path))


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


def commit_all(folder: Path, subject: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-m", subject)


def copy_template(folder: Path) -> Path:
    """The checkout as it is now, in a folder of its own without what is not kept in git."""
    kept_out = shutil.ignore_patterns(
        ".git", ".venv", "build", "*cache*", ".hypothesis", "*.egg-info"
    )
    return shutil.copytree(TEMPLATE, folder, ignore=kept_out, dirs_exist_ok=True)


ALPHABETS = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}


def write_words(path: Path) -> Path:
    """Write a csv file of 300 words in three alphabets, which trains in a second."""
    draw = random.Random(0)
    lines = ["text,label"]
    for label, alphabet in ALPHABETS.items():
        for _ in range(100):
            text = "".join(draw.choices(alphabet, k=draw.randint(1, 12)))
            lines.append(f"{text},{label}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def weights(path: Path) -> dict[str, bytes]:
    """A saved byte CNN's weights, as bytes."""
    tensors = load_file(path / "model" / "model.safetensors")
    return {name: value.tobytes() for name, value in tensors.items()}


# Debian's names for what pip cannot install.
PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "ip": "iproute2",
    "unshare": "util-linux",
    "g++": "g++",
    "git": "git",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
}


def need(*tools: str, root: bool = False) -> None:
    """Skip with a line that says what to install; with REQUIRE_TOOLS, as in CI, fail."""
    reasons = []
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        packages = " ".join(dict.fromkeys(PACKAGES[tool] for tool in missing))
        reasons.append(f"{', '.join(missing)} not installed: apt install {packages}")
    if root and not (os.name == "posix" and os.geteuid() == 0):
        reasons.append("it mounts file systems: run as root")
    if reasons:
        give_up = pytest.fail if os.environ.get("REQUIRE_TOOLS") else pytest.skip
        give_up("; ".join(reasons))


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    """Wait for what takes seconds, and minutes on a busy machine."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it took more than {seconds} s"
        time.sleep(0.1)


ABSENT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_others(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {names} else find(name, path, target)
PathFinder.find_spec = classmethod(find_others)
"""


def hide(folder: Path, *names: str) -> dict[str, str]:
    """Variables with which Python finds none of these packages."""
    (folder / "sitecustomize.py").write_text(ABSENT.format(names=names), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
