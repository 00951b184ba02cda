"""make installs what a command needs, and nothing that breaks a stock Trainer."""

import functools
import http.server
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import checkout
import package_index
from projects import ENVIRONMENT, Project, bake
from smlightning_sagemaker.job import requirements_file

STOCK = """
import tempfile, torch
from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringModel
trainer = Trainer(max_steps=2, logger=False, enable_checkpointing=False,
                  default_root_dir=tempfile.gettempdir())
trainer.fit(BoringModel())
assert trainer.global_step == 2
"""
GROUPS = {  # command: the groups of pyproject.toml that it installs; with tools: the tools' wheel
    "train": {"train"},
    "predict": {"train"},
    "rehearse": {"train", "tools", "open-mpi"},
    "preflight": {"train", "tools", "open-mpi", "lock"},
    "launch": {"train", "tools", "open-mpi", "lock"},
    "notebook": {"train", "tools", "open-mpi", "lock", "notebook"},
    "test": {"train", "tools", "open-mpi", "dev"},
}


@pytest.mark.long
def test_a_stock_trainer_works_here(project: Project) -> None:
    """Next to all that `make setup` installs. mpi4py in it would make Lightning look for MPI."""
    project.run("python", "-c", STOCK)
    assert project.run("python", "-c", "import mpi4py", check=False).returncode == 1
    python = Path(sys.prefix) / "open-mpi" / "bin" / "python"
    for package, is_there in (("mpi4py", True), ("torch", False)):
        ended = project.run(str(python), "-c", f"import {package}", check=False, PYTHONPATH="")
        assert (ended.returncode == 0) == is_there, package


@pytest.mark.parametrize("command", GROUPS)
def test_a_command_installs_only_what_it_needs(
    command: str, project: Project, tmp_path: Path
) -> None:
    """Read from `make -n`, without an environment."""
    for tool in ("make", "python3", "mkdir", "sh", "grep", "awk", "sed", "uname"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    said = subprocess.run(
        [str(tmp_path / "make"), "-n", command, f"VENV={tmp_path}/venv"],
        cwd=project.path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = said.split()
    groups = {after for word, after in itertools.pairwise(words) if word == "--group"}
    if "[rehearsal,testing]" in said:
        groups.add("tools")
    assert {group.rpartition(":")[2].strip(";") for group in groups} == GROUPS[command]
    assert "--requirement requirements.txt" in said


@pytest.mark.parametrize("absolute", [False, True])
def test_requirements_are_installed_from_src_wherever_the_environment_lies(
    absolute: bool, tmp_path: Path
) -> None:
    """A stub of the environment's Python writes down how it is called."""
    project = bake(tmp_path / ("a folder" if not absolute else "folder"))
    programs = project.path / ".venv" / "bin"
    programs.mkdir(parents=True)
    calls = tmp_path / "calls"
    (programs / "python").write_text(f'#!/bin/sh\necho "$PWD: $*" >> "{calls}"\n')
    (programs / "python").chmod(0o755)
    command = ["make", "train", *([f"VENV={programs.parent}"] if absolute else [])]
    path = os.pathsep.join([str(programs), os.defpath])
    subprocess.run(command, cwd=project.path, env={"PATH": path}, check=True)
    [call] = [line for line in calls.read_text().splitlines() if "--requirement" in line]
    assert call.startswith(f"{project.path / 'src'}: -m pip install")


def test_every_installation_keeps_the_pinned_versions(tmp_path: Path) -> None:
    """Both locks and torch are constraints of each later installation; hosts' versions win."""
    project = bake(tmp_path)
    steps = project.run("make", "-n", "setup", f"VENV={tmp_path}/made").stdout
    installs = re.findall(r"-m pip install [^&\n]*", steps.replace("\\\n", " "))
    assert len(installs) >= 7
    for line in installs:
        exact = "--requirement requirements.txt" in line or "--no-deps" in line
        assert (
            exact or "pip>=25.1" in line or f'--constraint "{tmp_path}/made/bin/pins.txt"' in line
        )
        ours = re.findall(r"\S*smlightning\S*", line)
        assert all(word.startswith(("./", "'./")) for word in ours), "an index may have the name"
    written = re.findall(r"^(?:awk|sed) .* >+ .*pins.txt\"$", steps, re.M)
    workflow = project.path / ".github" / "requirements.txt"
    workflow.write_text(re.sub(r"(?m)^rich==\S+", "rich==1.0", workflow.read_text()))
    (tmp_path / "made" / "bin").mkdir(parents=True)
    project.run("sh", "-c", "\n".join(written))
    *pins, of_torch = (tmp_path / "made/bin/pins.txt").read_text().splitlines()
    of_hosts = pinned(project.path / "src" / "requirements.txt")
    names = {pin.partition("==")[0] for pin in of_hosts}
    of_tools = [pin for pin in pinned(workflow) if pin.partition("==")[0] not in names]
    assert pins == of_hosts + of_tools and len(of_hosts) > 50
    assert f'"{of_torch}"' in project.read("pyproject.toml")
    assert "rich==1.0" in pinned(workflow)
    assert {"boto3", "psutil", "pydantic", "uv"} <= {pin.partition("==")[0] for pin in pins}


def pinned(path: Path) -> list[str]:
    """The lines of a lock without their hashes, and without wheels by their path."""
    lines = (line.partition(" --hash")[0].strip() for line in requirements_file.lines(path))
    return [line for line in lines if ".whl" not in line]


@pytest.fixture(scope="module")
def torch_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two indexes: that of pytorch.org for CPUs, and one for everything else."""
    root = tmp_path_factory.mktemp("indexes")
    kinds = itertools.product(
        (("torch", "2.13.0"), ("torchvision", "0.28.0")),
        (("whl/cpu", "+cpu"), ("pypi.org/simple", "")),
    )
    for (package, number), (index, build) in kinds:
        version = number + build
        (root / index / package).mkdir(parents=True)
        name = root / index / package / f"{package}-{version}-py3-none-any.whl"
        folder = f"{package}-{version}.dist-info"
        with zipfile.ZipFile(name, "w") as wheel:
            wheel.writestr(
                f"{folder}/METADATA",
                f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
            )
            wheel.writestr(
                f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{folder}/RECORD", "")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.long
def test_one_variable_chooses_the_build_of_torch(tmp_path: Path, torch_index: str) -> None:
    """With make, pip and an environment; the wheels are empty."""
    project = bake(tmp_path)
    made = tmp_path / "made"
    venv.create(made, with_pip=True)
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0\n")
    (tmp_path / "gpu" / "nvidia-smi").chmod(0o755)
    clean = {"PATH": os.defpath, "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    clean |= {"PIP_INDEX_URL": f"{torch_index}//pypi.org/simple"}  # as PyPI is
    closed = "http://127.0.0.1:9/whl/cpu"

    def taken(choice: str, index: str = f"{torch_index}/whl/cpu", **variables: str) -> list[str]:
        """What make prints and returns, and the installed version, which is then removed."""
        command = ["make", f"{made}/.torch-{choice.rpartition('/')[2]}", f"VENV={made}"]
        ended = subprocess.run(
            [*command, f"TORCH={choice}", f"CPU_INDEX={index}"],
            cwd=project.path, env={**clean, **variables}, capture_output=True, text=True,
        )  # fmt: skip
        found = [path.name for path in sorted(made.rglob("torch*-*.dist-info"))]
        return [ended.stdout + ended.stderr, str(ended.returncode), *found]

    def forget() -> None:
        for path in (*made.rglob("torch*-*.dist-info"), *made.glob(".torch-*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    cpu = "torch-2.13.0+cpu.dist-info"
    said, *rest = taken("auto", closed)
    assert rest == ["0"] and "taking the torch of pip's index" in said
    forget()
    said, *rest = taken("auto")
    assert rest == ["0", cpu] and "Taking torch==2.13.0+cpu from" in said
    (made / ".torch-auto").unlink()
    assert taken("auto", closed) == ["", "0", cpu]  # what is installed stays
    cuda = "torch-2.13.0.dist-info"
    assert taken("cuda")[1:] == ["0", cuda]  # in an environment that has all other packages
    said, *rest = taken("cpu", closed)
    assert rest == ["2", cuda] and "or does not answer; check TORCH" in said
    assert taken(f"{torch_index}/whl/cpu")[1:] == ["0", cpu]
    said, *rest = taken("cuda", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    assert rest == ["2", cpu], "a failure changes nothing"
    forget()
    assert taken("cuda") == ["", "0"]  # pip's own comes with the other packages
    forget()
    toml = project.read("pyproject.toml")
    more = toml.replace('"torch==2.13.0"', '"torch==2.13.0", "torchvision==0.28.0"')
    assert taken("auto")[1:] == ["0", cpu]
    (project.path / "pyproject.toml").write_text(more)
    (made / ".torch-auto").unlink()
    vision = "torchvision-0.28.0+cpu.dist-info"
    said, *rest = taken("auto", closed)
    assert rest == ["2", cpu] and "error: http" in said  # pip's torchvision has another build
    gpu = os.pathsep.join([str(tmp_path / "gpu"), os.defpath])
    assert taken("auto", PATH=gpu)[1:] == ["0", cpu, vision]
    (made / ".torch-auto").unlink()
    assert taken("auto")[1:] == ["0", cpu, vision]
    assert taken("cuda")[1:] == ["0", cuda, "torchvision-0.28.0.dist-info"]
    assert taken("cpu")[1:] == ["0", cpu, vision]
    (project.path / "pyproject.toml").write_text(toml.replace("torch==2.13.0", "torch>=2.13"))
    assert taken("cuda")[1:] == ["0", cpu, vision]  # without a version, nothing is replaced
    (project.path / "pyproject.toml").write_text(toml)
    forget()
    assert taken("auto", PATH=gpu) == ["", "0"]
    forget()
    assert taken("auto", PIP_INDEX_URL=f"{torch_index}/mirror/simple") == ["", "0"]


def test_what_a_laptop_installs_next_to_the_locks_has_exact_versions() -> None:
    """.github/requirements.txt has the versions of uv and the tools' dependencies."""
    locked = {
        pin.partition("==")[0] for pin in pinned(checkout.PROJECT / ".github/requirements.txt")
    }
    text = (checkout.PROJECT / "pyproject.toml").read_text()
    groups = tomllib.loads(text.partition("[dependency-groups]")[2].partition("\n[")[0])
    tools = tomllib.loads((checkout.PACKAGES[1] / "pyproject.toml").read_text())["project"]
    lists = [*groups.values(), *tools["optional-dependencies"].values(), tools["dependencies"]]
    for wanted in map(Requirement, itertools.chain(*lists)):
        exact = [each.operator for each in wanted.specifier] == ["=="]
        assert exact or wanted.name in locked, str(wanted)


def test_the_workflows_lock_has_what_preflight_imports_and_runs() -> None:
    """Without uv, preflight would skip whether src/requirements.txt fits the image."""
    tools = tomllib.loads((checkout.PACKAGES[1] / "pyproject.toml").read_text())["project"]
    needed = {Requirement(text).name for text in tools["dependencies"]}
    lines = requirements_file.lines(checkout.PROJECT / ".github" / "requirements.txt")
    locked = {found.name for found in map(requirements_file.requirement_of, lines) if found}
    assert {*needed, "uv"} <= locked


@pytest.mark.long
def test_the_workflow_that_sends_jobs_installs_everything_with_hashes(
    tmp_path: Path,
) -> None:
    """The workflow's own steps, in a new environment; then preflight runs, without torch."""
    project = bake(tmp_path)
    jobs = yaml.safe_load(project.read(".github/workflows/job.yml"))["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    steps = [run for run in runs if "install" in run]
    safe = ("--require-hashes --only-binary=:all:", "--no-deps --no-index src/smlightning-*.whl")
    assert len(steps) == 4 and all(any(word in step for word in safe) for step in steps)
    assert not any(re.search(r"\bmake\b", run) for run in runs)  # which would install more
    venv.create(tmp_path / "venv", with_pip=True)
    path = os.pathsep.join([str(tmp_path / "venv" / "bin"), os.defpath])
    clean = {"PATH": path, "HOME": str(tmp_path)}
    for step in (*steps[:2], "uv --version", "smlightning preflight --offline"):
        ended = subprocess.run(
            ["sh", "-c", step], cwd=project.path, env=clean, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_make_lock_installs_no_lock(project: Project, tmp_path: Path) -> None:
    """pip may reject the one that it is to replace."""
    said = project.run("make", "-n", "lock", f"VENV={tmp_path}/venv").stdout
    assert "install --quiet" in said and "--requirement" not in said and "--group" not in said


@pytest.mark.parametrize("needs", ["zz>=2", "zz>=1"])
def test_a_lock_that_the_images_torch_rejects_is_an_error(needs: str, tmp_path: Path) -> None:
    """Also on a Python that is not the oldest."""
    fresh = bake(tmp_path)
    files = tmp_path / "files"
    wheels = [
        package_index.wheel(files, "torch", "2.13.0", needs),
        package_index.wheel(files, "zz", "1.0"),
    ]
    address = package_index.index(
        tmp_path / "simple", *wheels, package_index.wheel(files, "zz", "2.0")
    )
    lines = 'zz==1.0 ; python_version >= "3.12"\ntorchvision==0.28.0\n'
    (fresh.path / "src/requirements.in").write_text(lines)
    command = ("make", "lock", f"VENV={ENVIRONMENT}", "-o", f"{ENVIRONMENT}/bin/uv")
    variables = {"PIP_INDEX_URL": address, "PIP_CONFIG_FILE": os.devnull}
    ended = fresh.run(*command, "ARGS=--upgrade", check=False, **variables)
    said = "error: the image's torch==2.13.0 needs other versions" in ended.stderr
    assert ended.returncode and said == (needs == "zz>=2"), ended.stderr
    assert "line 2 names a package of the image" in ended.stderr


def test_make_lock_uses_the_index_of_pip(tmp_path: Path) -> None:
    """uv itself would look on PyPI for internal packages."""
    fresh = bake(tmp_path)
    nobody = "http://127.0.0.1:9/simple"
    before = fresh.read("src/requirements.txt")
    command = ("make", "lock", f"VENV={ENVIRONMENT}", "-o", f"{ENVIRONMENT}/bin/uv")
    variables = {"PIP_INDEX_URL": nobody, "PIP_CONFIG_FILE": os.devnull}
    ended = fresh.run(*command, "ARGS=--upgrade-package rich", check=False, **variables)
    assert ended.returncode and nobody in ended.stderr
    assert fresh.read("src/requirements.txt") == before


def test_a_failed_lock_shows_the_pinned_lines_that_prevent_it(tmp_path: Path) -> None:
    """Without an index, uv finds no version of any line."""
    fresh = bake(tmp_path)
    command = ("make", "lock", f"VENV={ENVIRONMENT}", "-o", f"{ENVIRONMENT}/bin/uv")
    ended = fresh.run(*command, "ARGS=--no-index", check=False)
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: no versions")]
    lines = fresh.read("src/requirements.in").splitlines()
    shown = re.findall(r"; line (\d+): (.*?)(?=; line|$)", error)
    assert ended.returncode and shown
    assert all("==" in text and lines[int(number) - 1] == text for number, text in shown)
