"""Runs on pretended GPUs; what a real one would not take fails the test that made it."""

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import gpu_runs
import pytest
from gpu_runs import Run

from smlightning_sagemaker.testing.processes import Record, run_ranks


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains the small run on pretended GPUs, one for each rank, in a folder of the test.

    It fails where an operation mixes devices, NCCL would reject a collective, a step or a
    validation batch waits for the GPU, or a thread uses a GPU that it has not chosen.
    """

    def train(ranks: int, body: dict[str, Any] | None = None, **options: Any) -> list[Record]:
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        given = {**small_options(data), "batch_size": 12 // ranks, "num_workers": 0}
        given |= {**options, "data_dir": str(data / "prepared")}
        rank = partial(gpu_runs.train, options=given, **(body or {}))
        records = run_ranks(rank, tmp_path / "run", ranks, 0)
        for number, record in enumerate(records):
            assert gpu_runs.findings(record) == [], f"rank {number}"
        return records

    return train


def small_options(data: Path) -> dict[str, Any]:
    """Those of the project's tests/small.py."""
    place = gpu_runs.PROJECT / "tests" / "small.py"
    return runpy.run_path(str(place))["options"](data)
