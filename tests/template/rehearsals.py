"""Rehearsals of a generated project, for the tests that read their reports."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from projects import Project

COMMAND = ["python", "-m", "smlightning_sagemaker", "rehearse"]


def rehearse(project: Project, folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """The JSON report of a rehearsal, with its exit status and output."""
    path = folder / f"report-{time.monotonic_ns()}.json"
    command = [*COMMAND, "--json", str(path), *arguments]
    ended = project.run(*command, check=False, FORCE_COLOR="1", **variables)  # as notebooks set it
    output = ended.stdout[-8000:] + ended.stderr[-4000:]
    assert path.exists(), output
    printed = ended.stdout + ended.stderr
    result = {"exit_status": ended.returncode, "output": output, "printed": printed}
    return {**json.loads(path.read_text()), **result}


def start(
    project: Project, log: Path, *command: str, **variables: str
) -> "subprocess.Popen[bytes]":
    """Start a command in the project's folder, which writes its output into a file."""
    words = [sys.executable if word == "python" else word for word in command]
    with log.open("wb") as file:
        return subprocess.Popen(
            words,
            cwd=project.path,
            env=project.environment(**variables),
            stdout=file,
            stderr=file,
        )


def size(hosts: int, processes: int, distribution: str) -> list[str]:
    """The options that say how large the cluster is."""
    numbers = ["--hosts", str(hosts), "--processes", str(processes)]
    return [*numbers, "--distribution", distribution]


def options(words: Path | str, world_size: int, epochs: int = 2) -> list[str]:
    """A short run whose global batch is 48, however many ranks share it."""
    values = {
        "dataset": words,
        "epochs": epochs,
        "batch_size": 48 // world_size,
        "log_every": 5,
    }
    line = ["--"]
    for name, value in values.items():
        line += [f"--{name}", str(value)]
    return line


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    """Each check's verdict, by name."""
    return {check["name"]: check["verdict"] for check in report["checks"]}


def failed_checks(report: dict[str, Any]) -> dict[str, str]:
    """The details of the checks that failed, by name."""
    checks = report["checks"]
    return {check["name"]: check["detail"] for check in checks if check["verdict"] == "failed"}


def processes_below(folder: Path) -> list[psutil.Process]:
    """Processes of rehearsals whose temporary folder is this one."""
    running = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            evidence = process.environ().get("REHEARSAL_EVIDENCE", "")
            if evidence.startswith(str(folder)):
                running.append(process)
    return running
