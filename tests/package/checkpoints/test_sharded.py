"""`--strategy fsdp`: the numbers of DDP, a part on each rank, and checkpoints that any run resumes.

Kills and stops from outside: benchmarks/stress.py --strategy fsdp.
"""

import csv
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sharded_runs
import torch
from safetensors.torch import load_file

from smlightning.checkpoints import files, reader
from smlightning.testing.processes import run_ranks

GLOBAL_BATCH = 16
STEPS = 8  # two epochs
CRASH = 5


@pytest.fixture
def words(rows: list[tuple[str, str]], tmp_path: Path) -> Path:
    path = tmp_path / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows[::3]])
    return path


def go(words: Path, name: str, ranks: int, strategy: str, **more: Any) -> list[dict[str, Any]]:
    """Run or resume in the folder ``name``; what each rank saw."""
    body_options = {
        key: more.pop(key) for key in ("crash_at", "dropout", "hosts", "kill_at") if key in more
    }
    options = {
        "dataset": str(words),
        "data_dir": str(words.parent / "prepared"),
        "batch_size": GLOBAL_BATCH // ranks,
        "epochs": 2,
        "lr": 0.01,
        "strategy": strategy,
        "checkpoint_steps": 1,
        **more,
    }
    body = partial(sharded_runs.run, options=options, **{"dropout": False, **body_options})
    return run_ranks(body, words.parent / name, ranks)


def weights(words: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(words.parent / name / "outputs/model/model.safetensors")


def gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of a number."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def losses(records: list[dict[str, Any]]) -> dict[str, float]:
    return records[0]["losses"]


def test_the_numbers_are_those_of_ddp_and_each_rank_has_its_part(words: Path) -> None:
    ddp = go(words, "ddp", 2, "ddp")
    for ranks, most in ((2, 0.55), (4, 0.30)):
        name = f"fsdp{ranks}"
        records = go(words, name, ranks, "fsdp")
        assert losses(records) == pytest.approx(losses(ddp), abs=1e-5)
        assert len(losses(ddp)) == STEPS
        assert gap(weights(words, name), weights(words, "ddp")) < 1e-5
        for record in records:
            assert record["elements"] == ddp[0]["held"]
            assert record["held"] <= most * record["elements"]


def test_a_run_resumes_on_other_ranks_and_with_the_other_strategy(words: Path) -> None:
    go(words, "whole", 2, "fsdp", dropout=True)
    go(words, "fsdp", 2, "fsdp", dropout=True, crash_at=CRASH)
    directory = words.parent / "fsdp/outputs/checkpoints"
    (_, newest), *_ = files.numbered(directory)
    assert f"-step{CRASH:06d}-" in newest.name
    assert len(files.files_beside(newest)) == 4, "a shard of each rank, and of the best weights"
    for name, ranks, strategy in (("same", 2, "fsdp"), ("ddp", 2, "ddp")):
        shutil.copytree(words.parent / "fsdp", words.parent / name)
        records = go(words, name, ranks, strategy, dropout=True)
        assert f"step {CRASH} of {STEPS}" in records[0]["log"]
        assert min(map(int, losses(records))) == CRASH + 1
        difference = gap(weights(words, name), weights(words, "whole"))
        assert difference == 0.0 if name == "same" else difference < 1e-5, name
    for name, ranks in (("one", 1), ("three", 4)):
        shutil.copytree(words.parent / "fsdp", words.parent / name)
        go(words, name, ranks, "fsdp")
    assert gap(weights(words, "one"), weights(words, "three")) < 1e-5, "no dropout from there on"


def test_a_run_of_ddp_is_continued_sharded_with_its_best_weights(words: Path) -> None:
    options: dict[str, Any] = {"val_check_steps": 3}
    go(words, "whole", 2, "ddp", **options)
    go(words, "crashed", 2, "ddp", crash_at=CRASH, **options)
    directory = words.parent / "crashed/outputs/checkpoints"
    before = reader.read_here(files.newest(directory) or Path())
    assert before["best_weights"] is not None
    records = go(words, "crashed", 2, "fsdp", **options)
    assert gap(weights(words, "crashed"), weights(words, "whole")) < 1e-5
    after = files.newest(directory)
    assert after and not list(directory.glob("*-best-*.ckpt"))
    state = reader.read_here(after)
    assert gap(state["state_dict"], state["best_weights"]) > 0
    assert before["state_dict"].keys() == state["state_dict"].keys()
    assert {path.name for path in directory.glob("*.shard")} == {
        name for _, path in files.numbered(directory) for name in files.files_beside(path)
    }
    assert "best weights:" in records[0]["log"]


def test_hosts_of_which_each_has_its_own_shards_alone(words: Path) -> None:
    options: dict[str, Any] = {"hosts": True, "dropout": True, "val_check_steps": 3}
    go(words, "whole", 2, "fsdp", **options)
    go(words, "crashed", 2, "fsdp", crash_at=CRASH, **options)
    folders = [words.parent / f"crashed/host{rank}/outputs/checkpoints" for rank in range(2)]
    kept = [sorted(folder.glob("*.shard")) for folder in folders]
    assert all(f"-{rank:05d}-of-" in path.name for rank in range(2) for path in kept[rank])
    assert files.KEEP < len(kept[1]) <= files.KEEP + 3, "older ones are removed there, too"
    records = go(words, "crashed", 2, "fsdp", **options)
    assert f"step {CRASH} of {STEPS}" in records[0]["log"]
    assert gap(weights(words, "crashed/host0"), weights(words, "whole/host0")) == 0.0
    # A shard that no host has whole: the checkpoint before is taken.
    shutil.rmtree(words.parent / "crashed")
    go(words, "crashed", 2, "fsdp", crash_at=CRASH, **options)
    (_, newest), *_ = files.numbered(folders[0])
    other = folders[1] / files.files_beside(newest)[1]
    other.write_bytes(other.read_bytes()[:-1])
    records = go(words, "crashed", 2, "fsdp", **options)
    assert f"step {CRASH - 1} of {STEPS}" in records[0]["log"]


def test_a_rank_that_is_killed_within_a_write(words: Path) -> None:
    """Nothing names the torn checkpoint, and the resumed run ends as if nothing had happened."""
    go(words, "whole", 2, "fsdp", dropout=True)
    with pytest.raises(AssertionError, match="ended with"):
        go(words, "killed", 2, "fsdp", dropout=True, kill_at=CRASH)
    directory = words.parent / "killed/outputs/checkpoints"
    left = files.newest(directory)
    assert left and int(left.name[:6]) == CRASH - 1 and (directory / ".half.shard").exists()
    records = go(words, "killed", 2, "fsdp", dropout=True)
    assert left.name in records[0]["log"] and not list(directory.glob(files.TEMPORARY_SHARD))
    assert gap(weights(words, "killed"), weights(words, "whole")) == 0.0


def test_what_cannot_be_sharded_is_refused(words: Path) -> None:
    (first, _) = go(words, "compressed", 2, "fsdp", compression="fp16")
    assert "compression" in first["refused"]
