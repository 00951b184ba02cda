"""Generated projects to test, and what several tests share."""

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cookiecutter.main import cookiecutter

TEMPLATE = Path(__file__).parent.parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two ranks on two cores, beside another test


# A third of a quiet minute and more each: begun last, one of them would be waited for.
LONG = ("passes_its_own_tests_and_the_machinerys", "[kills:", "from_configuration_to_prediction")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each process takes an equal part of the tests, in their order: the long ones come first in each."""
    long = [item for name in LONG for item in items if name in item.nodeid]
    rest = [item for item in items if item not in long]
    step = len(items) // 3 + 1
    for number, item in enumerate(long):
        rest.insert(number % 3 * step + number // 3, item)
    items[:] = rest


@dataclass(frozen=True)
class Project:
    """A generated project."""

    path: Path

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder; `python` is this environment's."""
        words = [sys.executable if word == "python" else word for word in command]
        foreign = r"SM_|OMPI_|(RANK|WORLD_SIZE|LOCAL_RANK|MLFLOW_TRACKING_URI|HUB_TOKEN_SECRET)$"
        clean = {name: value for name, value in os.environ.items() if not re.match(foreign, name)}
        found = subprocess.run(
            words, cwd=self.path, env={**clean, "PYTHONUTF8": "1", **environment}, text=True, capture_output=True
        )
        if check and found.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {found.returncode}\n{found.stdout}\n{found.stderr}")
        return found

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")


def bake(directory: Path, **answers: object) -> Project:
    """Generate a project with these answers and defaults for the rest."""
    return Project(Path(cookiecutter(str(TEMPLATE), no_input=True, output_dir=str(directory), extra_context=answers)))


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with default answers."""
    return bake(tmp_path_factory.mktemp("default"))


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A csv file of 300 words in three alphabets: a data set that trains in a second."""
    import random

    draw = random.Random(0)
    alphabets = {"greek": "αβγδεζηθ", "latin": "abcdefgh", "cyrillic": "абвгдежз"}
    rows = [f"{''.join(draw.choices(a, k=draw.randint(1, 12)))},{n}" for n, a in alphabets.items() for _ in range(100)]
    path = tmp_path_factory.mktemp("words") / "words.csv"
    path.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    return path


def weights(path: Path) -> dict[str, bytes]:
    """A saved byte CNN's weights, as bytes."""
    from safetensors.numpy import load_file

    return {name: value.tobytes() for name, value in load_file(path / "model" / "model.safetensors").items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Debian's names for what pip cannot install.
PACKAGES = {"/usr/sbin/sshd": "openssh-server", "ip": "iproute2", "unshare": "util-linux", "g++": "g++"}


def need(*tools: str, root: bool = False) -> None:
    """Skip with a line that says what to install; with REQUIRE_TOOLS, as in CI, fail."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    reasons = []
    if missing:
        reasons.append(f"{', '.join(missing)} not installed: apt install {' '.join(PACKAGES[t] for t in missing)}")
    if root and not (os.name == "posix" and os.geteuid() == 0):
        reasons.append("it mounts file systems: run as root")
    if reasons:
        (pytest.fail if os.environ.get("REQUIRE_TOOLS") else pytest.skip)("; ".join(reasons))


ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def hide(folder: Path, *names: str) -> dict[str, str]:
    """Variables of an environment that lacks these packages: importing one fails in a process that has them."""
    (folder / "sitecustomize.py").write_text(ABSENT.format(names=names))
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def without_sdk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For rehearsals that are not about the request: importing the SDK to make it takes as long as two ranks' start."""
    return hide(tmp_path_factory.mktemp("without-sdk"), "sagemaker", "moto", "mypy", "pytest", "ipykernel")
