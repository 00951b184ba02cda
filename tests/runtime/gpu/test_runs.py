"""Whole runs on pretended GPUs; the ``run`` fixture checks that no GPU would mind or wait."""

from pathlib import Path
from typing import Any

import pytest
from gpu_runs import Run
from safetensors.torch import load_file


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "run/outputs/model/model.safetensors")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 1])
def test_a_stopped_run_resumes_on_gpus_to_its_end(run: Run, ranks: int, tmp_path: Path) -> None:
    stopped = run(ranks, {"stop_at": 5}, val_check_steps=4)
    assert all(record["stopped"] for record in stopped)
    resumed = run(ranks, val_check_steps=4)
    assert not any(record["stopped"] for record in resumed)
    assert resumed[0]["predicted"] == "cuda"
    for record in resumed:
        assert 0 < record["steps"] <= 12
        assert record["validation batches"] > 0
        assert record["sent"] or ranks == 1
    assert weights(tmp_path)


def test_ranks_train_over_smddp_on_gpus(run: Run) -> None:
    first, _ = run(2, {"launcher": "smddp"}, epochs=1)
    assert first["predicted"] == "cuda"
    assert "smddp" in first["log"]


def test_the_group_of_a_failed_rank_is_left_over_nccl(run: Run) -> None:
    """To destroy it may block for good, and would abort the others before they read the cause."""
    first, second = run(2, {"fail_at": 3})
    assert first["error"] == "rank 0 fails"
    assert "rank 0" in second["error"]
    assert first["group is left"] and second["group is left"]


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "shard_size"), [(2, 0), (4, 2)])
def test_divided_weights_train_and_resume_on_gpus(
    run: Run, ranks: int, shard_size: int, tmp_path: Path
) -> None:
    sharded = {"strategy": "fsdp", "shard_size": shard_size}
    stopped = run(ranks, {"stop_at": 2}, **sharded)
    assert all(record["stopped"] for record in stopped)
    resumed = run(ranks, **sharded)
    assert stopped[0]["steps"] + resumed[0]["steps"] == 2 * 9  # epochs and their steps
    assert resumed[0]["predicted"] == "cuda"
    assert "embed.weight" in weights(tmp_path)


@pytest.mark.long
def test_loader_workers_serve_gpus(run: Run) -> None:
    (record,) = run(1, num_workers=-1, epochs=1)
    assert record["predicted"] == "cuda"
