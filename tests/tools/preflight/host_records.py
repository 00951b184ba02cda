"""Memory of a host's processes, measured in runs of train.py on CPUs, and its estimate."""

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from small_job import GOOD, PROJECT
from smlightning_sagemaker.estimate import known as estimates
from smlightning_sagemaker.estimate.sizes import Memory, Run, host_memory, total
from smlightning_sagemaker.project import Project

SECONDS = 0.1  # between two looks at the processes


@dataclass(frozen=True)
class Record:
    """A training on one host."""

    estimated: Memory
    measured: int  # bytes

    @property
    def error(self) -> float:
        """By which share the estimate is off."""
        return total(self.estimated) / self.measured - 1


def train(folder: Path, options: Mapping[str, Any], *, ranks: int = 1) -> Record:
    """Estimate a training of the project, then train.

    Args:
        folder: for a copy of the project, and for what it writes.
        options: of train.py. A checkpoint every few steps and a validation have to be among its
            steps.
        ranks: processes of this host.
    """
    shutil.copytree(PROJECT.src, folder / "src")
    shutil.copy(PROJECT.root / "pyproject.toml", folder)
    words = [f"--{name}={value}" for name, value in options.items()]
    words += ["--resume=never", f"--output_dir={folder / 'out'}"]
    project = Project(folder)
    job = GOOD.replace(instance_type="ml.m5.xlarge", instance_count=1, hyperparameters={})
    # Each prepares the data, as the first process of a host does.
    chosen = estimates.options_of(job, project, [*words, f"--data_dir={folder / 'counted'}"])
    known = estimates.counted(job, project, chosen)
    run = Run(chosen["batch_size"], ranks)
    workers = estimates.LOADERS * max(chosen["num_workers"], 0)
    estimated = host_memory(known.sizes, run, ranks, workers, gpus=False)
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    script = str(folder / "src" / "train.py")
    command = [*launcher, script, *words, f"--data_dir={folder / 'data'}"]
    return Record(estimated, peak_memory(command, folder))


def peak_memory(command: list[str], folder: Path) -> int:
    """Most bytes of main memory that a command and its children take together.

    Raises:
        AssertionError: the command fails; its output is the message.
    """
    package = PROJECT.root / "vendor" / "smlightning"
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    env["MPLCONFIGDIR"] = str(folder / "matplotlib")  # a fresh host has no list of fonts yet
    log = folder / "log.txt"
    most = 0
    with log.open("wb") as file:
        process = psutil.Popen(command, env=env, cwd=folder, stdout=file, stderr=file)
        try:
            while process.poll() is None:
                family = [process, *process.children(recursive=True)]
                most = max(most, _bytes(family))
                time.sleep(SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
    assert process.returncode == 0, log.read_text(encoding="utf-8", errors="replace")
    return most


def _bytes(family: list[psutil.Process]) -> int:
    """Memory of these processes: their own pages, and the largest amount of shared file pages.

    The share of a process in such a file, as a library, (PSS) would depend on the other processes
    of this machine.
    """
    own = files = 0
    for process in family:
        with contextlib.suppress(OSError):  # it has just ended
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
            found = {name: int(size) for name, size in re.findall(r"(?m)^(\w+): +(\d+) kB", text)}
            own += found["Pss_Anon"] + found["Pss_Shmem"]
            files = max(files, found["Shared_Clean"] + found["Private_Clean"])
    return (own + files) * 1024
