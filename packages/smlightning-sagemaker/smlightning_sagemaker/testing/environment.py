"""The environment of tests: outside any job and launcher, without GPUs, with one thread.

Other variables stay. USE_GPUS=1 lets tests see the GPUs.
"""

import os
from collections.abc import Mapping
from dataclasses import astuple

from smlightning.cluster.location import LAUNCHERS

# Variables of launchers and of a job's request.
OF_A_JOB = frozenset(
    [*astuple(LAUNCHERS["torchrun"]), "MASTER_ADDR", "MASTER_PORT", "MLFLOW_TRACKING_URI"]
)
OF_A_JOB_PREFIXES = ("SM_", "OMPI_", "SLURM_", "SMDATAPARALLEL_", "TORCHELASTIC_")


def of_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of tests and their processes, from those of this process."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in OF_A_JOB and not name.startswith(OF_A_JOB_PREFIXES)
    }
    gpus = {} if environment.get("USE_GPUS") else {"CUDA_VISIBLE_DEVICES": ""}
    return {"OMP_NUM_THREADS": "1", **kept, **gpus}  # tests run in parallel


def enter() -> None:
    """Give this process the environment of tests."""
    variables = of_tests(os.environ)
    os.environ.clear()
    os.environ.update(variables)
