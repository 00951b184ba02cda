"""make installs what a command needs, and nothing that breaks a stock Trainer."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from projects import Project, bake, hide
from smlightning.launch import requirements

STOCK = """
import tempfile, torch
from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringModel
trainer = Trainer(max_steps=2, logger=False, enable_checkpointing=False,
                  default_root_dir=tempfile.gettempdir())
trainer.fit(BoringModel())
assert trainer.global_step == 2
"""
GROUPS = {  # command: the groups of pyproject.toml that it installs
    "train": {"train"},
    "predict": {"train"},
    "rehearse": {"train", "open-mpi"},
    "preflight": set(),
    "launch": set(),
    "notebook": {"train", "open-mpi", "notebook"},
    "test": {"train", "open-mpi", "dev"},
    "lint": {"train", "open-mpi", "dev"},
}
EXTRAS = {  # command: the extras with which it installs the package in vendor/
    "train": {"train"},
    "predict": {"train"},
    "rehearse": {"train", "rehearsal"},
    "preflight": {"launch"},
    "launch": {"launch"},
    "notebook": {"train", "rehearsal", "launch"},
    "test": {"train", "rehearsal", "launch", "testing"},
    "lint": {"train", "rehearsal", "launch", "testing"},
}


def test_a_stock_trainer_works_here(project: Project) -> None:
    """Next to all that `make setup` installs. mpi4py in it would make Lightning look for MPI."""
    project.run("python", "-c", STOCK)
    assert project.run("python", "-c", "import mpi4py", check=False).returncode == 1
    python = Path(sys.prefix) / "open-mpi" / "bin" / "python"
    for package, is_there in (("mpi4py", True), ("torch", False)):
        ended = project.run(str(python), "-c", f"import {package}", check=False, PYTHONPATH="")
        assert (ended.returncode == 0) == is_there, package


@pytest.mark.parametrize(
    ("command", "uv"), [*((command, False) for command in GROUPS), ("train", True)]
)
def test_a_command_installs_only_what_it_needs(
    command: str, uv: bool, project: Project, tmp_path: Path
) -> None:
    """Read from `make -n`, without an environment; with uv and without."""
    for tool in ("make", "python3", "mkdir", "sh", "grep", "awk", "sed", "uname"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    if uv:
        (tmp_path / "uv").write_text("#!/bin/sh\necho --group\n")
        (tmp_path / "uv").chmod(0o755)
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
    assert {group.rpartition(":")[2] for group in groups} == GROUPS[command]
    extras = set(re.findall(r"--editable '\./vendor/smlightning\[(\w+)\]'", said))
    assert extras == EXTRAS[command] and said.count("smlightning[") == len(extras)
    assert ("--requirement requirements.txt" in said) == ("train" in GROUPS[command])
    assert ("/uv pip install" in said) == uv


@pytest.mark.parametrize(("absolute", "tool"), [(False, "python"), (True, "uv")])
def test_requirements_are_installed_from_src_wherever_the_environment_lies(
    absolute: bool, tool: str, tmp_path: Path
) -> None:
    """Stubs of the environment's programs write down how they are called."""
    project = bake(tmp_path / ("a folder" if tool == "python" and not absolute else "folder"))
    programs = project.path / ".venv" / "bin"
    programs.mkdir(parents=True)
    calls = tmp_path / "calls"
    for name in {"python", tool}:
        line = f'echo "{name}: $PWD: $*" >> "{calls}"'
        (programs / name).write_text(f"#!/bin/sh\n{line}\necho --group\n")
        (programs / name).chmod(0o755)
    command = ["make", "train", *([f"VENV={programs.parent}"] if absolute else [])]
    path = os.pathsep.join([str(programs), os.defpath])
    subprocess.run(command, cwd=project.path, env={"PATH": path}, check=True)
    [call] = [line for line in calls.read_text().splitlines() if "--requirement" in line]
    name, folder, words = call.split(": ", 2)
    assert (name, folder) == (tool, str(project.path / "src"))
    assert f"--python {programs / 'python'}" in words


def test_preflight_needs_no_torch(project: Project, tmp_path: Path) -> None:
    hidden = hide(tmp_path, "torch", "pytorch_lightning", "datasets", "moto", "sagemaker")
    project.run("python", "-m", "smlightning", "preflight", "--offline", **hidden)


def test_every_installation_keeps_the_pinned_versions(tmp_path: Path) -> None:
    """A requirements.txt with hashes is a constraint of each installation; others are none."""
    project = bake(tmp_path)
    made = project.path / "made"
    (made / "bin").mkdir(parents=True)
    command = ("make", "VENV=made", "-o", "made/bin/python", "-W", "src/requirements.txt")
    project.run(*command, "made/pins.txt")
    pins = (made / "pins.txt").read_text().splitlines()
    lines = requirements.lines(project.path / "src" / "requirements.txt")
    assert pins == [line.partition(" --hash")[0].strip() for line in lines] and len(pins) > 50
    steps = project.run(*command[:4], "-n", "setup").stdout
    installs = re.findall(r"pip (?:.* )?install --quiet .*", steps.replace("\\\n", " "))
    assert len(installs) >= 10
    assert all(f'--constraint "{made}/pins.txt"' in line for line in installs)
    (project.path / "src" / "requirements.txt").write_text("rich==14.3.4\n./wheels/mine.whl\n")
    project.run(*command, "made/pins.txt")
    assert (made / "pins.txt").read_text() == ""


def test_the_workflow_that_sends_jobs_installs_everything_with_hashes(
    tmp_path: Path,
) -> None:
    """The workflow's own step, in a new environment; then preflight runs."""
    project = bake(tmp_path)
    jobs = yaml.safe_load(project.read(".github/workflows/job.yml"))["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    steps = [run.removeprefix("python -m ") for run in runs if "install" in run]
    assert steps and all("--require-hashes --only-binary=:all:" in step for step in steps)
    assert not any(re.search(r"\bmake\b", run) for run in runs)  # which would install more
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    clean = {"PATH": os.defpath, "PYTHONPATH": "vendor/smlightning", "HOME": str(tmp_path)}
    preflight = ["smlightning", "preflight", "--offline"]
    for words in (steps[0].split(), preflight):
        ended = subprocess.run(
            [python, "-m", *words], cwd=project.path, env=clean, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
