"""Whole runs on pretended GPUs: what the ``run`` fixture checks of each, and that it is finished."""

from pathlib import Path
from typing import Any

import pytest
from gpu_runs import Run
from safetensors.torch import load_file

BOTH = ("classification", "language-model")


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "run/outputs/model/model.safetensors")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("task", BOTH)
def test_a_stopped_run_resumes_on_gpus_to_its_end(
    run: Run, task: str, ranks: int, tmp_path: Path
) -> None:
    stopped = run(task, ranks, {"stop_at": 5})
    assert all(record["stopped"] for record in stopped)
    resumed = run(task, ranks, val_check_steps=4)
    assert not any(record["stopped"] for record in resumed)
    assert resumed[0]["predicted"] == "cuda"
    for record in resumed:
        assert 0 < record["steps"] <= 12
        assert record["validation batches"] > 0
        assert record["sent"] or ranks == 1
    assert weights(tmp_path)
