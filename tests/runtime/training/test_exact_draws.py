"""After a kill within an epoch each batch has the same random numbers, with any loader."""

from pathlib import Path
from typing import Any

import pytest

from rank_training import ranks, train_with_train_py

CASES = [  # ranks, kind of loader, workers, persistent
    pytest.param(1, "shuffled", 2, True, marks=pytest.mark.long),
    pytest.param(1, "of_weights", 2, False, marks=pytest.mark.long),
    pytest.param(2, "shuffled", 0, False, marks=pytest.mark.long),
    (2, "of_subset", 1, True),
    pytest.param(3, "shuffled", 2, True, marks=pytest.mark.long),
    pytest.param(2, "of_batches", 0, False, marks=pytest.mark.long),
    # With a state of its own:
    pytest.param(2, "stream", 2, False, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("world_size", "kind", "workers", "persistent"), CASES)
def test_a_killed_run_ends_as_an_uninterrupted_one(
    world_size: int, kind: str, workers: int, persistent: bool, tmp_path: Path
) -> None:
    """Batches, their random numbers, losses and weights, bit for bit, on every rank."""
    loader = {"kind": kind, "workers": workers, "persistent": persistent}

    def go(name: str, kill_at: int = 0) -> list[dict[str, Any]]:
        folder = tmp_path / name
        return ranks(train_with_train_py, folder, world_size, kill_at=kill_at, **loader)

    alone = go("alone")
    per_epoch = len(alone[0]["batches"]) // 2
    second = per_epoch + min(4, per_epoch - 1)
    killed = go("killed", second)
    resumed = go("killed")
    assert "inexact" not in resumed[0]["log"]
    for whole, before, after in zip(alone, killed, resumed, strict=True):
        assert before["batches"] == whole["batches"][: len(before["batches"])]
        count = len(after["batches"])
        assert 0 < count < len(whole["batches"])
        for key in ("batches", "losses"):
            assert after[key] == whole[key][-count:], key
        for key in ("last", "best", "metrics"):
            assert after[key] == whole[key], key
