"""`--strategy fsdp`: DDP's numbers, a shard on each rank, checkpoints that any run resumes.

A few runs show all of it. Kills and stops in numbers: benchmarks/stress.py --strategy fsdp.
"""

import csv
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sharded_runs
import torch
from safetensors.torch import load_file

from smlightning.checkpoints import files
from smlightning_sagemaker.testing.processes import KILLED, run_ranks

GLOBAL_BATCH = 16
STEPS = 8  # two epochs
CRASH = 5
Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def words(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded") / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows[::3]])
    return path


def go(
    words: Path,
    name: str,
    ranks: int,
    strategy: str,
    body: dict[str, Any] | None = None,
    ended: int = 0,
    **more: Any,
) -> Records:
    """Run or resume in the folder ``name``; the records of each rank."""
    options = {
        "dataset": str(words),
        "data_dir": str(words.parent / "prepared"),
        "batch_size": GLOBAL_BATCH // ranks,
        "epochs": 2,
        "lr": 0.01,
        "strategy": strategy,
        "checkpoint_steps": 1 if body and body.keys() & {"crash_at", "kill_at"} else 0,
        "val_check_steps": 3,
        **more,
    }
    rank = partial(sharded_runs.run, options=options, **(body or {}))
    return run_ranks(rank, words.parent / name, ranks, ended)


def weights(words: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(words.parent / name / "outputs/model/model.safetensors")


def gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of a number."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def losses(records: Records) -> dict[str, float]:
    return records[0]["losses"]


@pytest.fixture(scope="module")
def ddp(words: Path) -> Records:
    return go(words, "ddp", 2, "ddp")


@pytest.fixture(scope="module")
def fsdp(words: Path) -> Records:
    return go(words, "fsdp", 2, "fsdp")


def test_fsdp_has_the_numbers_of_ddp_and_a_shard_on_each_rank(
    words: Path, ddp: Records, fsdp: Records
) -> None:
    assert losses(fsdp) == pytest.approx(losses(ddp), abs=1e-5)
    assert len(losses(ddp)) == STEPS
    assert re.search(r"^checkpoint: .*\.ckpt, 2 shards$", fsdp[0]["log"], re.M)
    assert gap(weights(words, "fsdp"), weights(words, "ddp")) < 1e-4
    for rank, record in enumerate(fsdp):
        assert record["elements"] == ddp[0]["held"]
        assert record["held"] <= 0.55 * record["elements"]
        assert record["built"] == (ddp[0]["parameters"] if rank == 0 else 0)


@pytest.mark.long
def test_four_ranks_two_replicas_and_one_process_continue_one_run(words: Path) -> None:
    """Each continues the one before; together they equal one run of one process."""
    alone = go(words, "alone", 1, "ddp", {"dropout": False})
    records = go(words, "chain", 4, "fsdp", {"dropout": False, "crash_at": 3})
    seen = {**losses(records)}
    for record in records:
        assert record["held"] <= 0.30 * record["elements"]
    replicas = {"dropout": False, "crash_at": CRASH}
    records = go(words, "chain", 4, "fsdp", replicas, shard_size=2)
    seen.update(losses(records))
    for record in records:
        assert 0.30 * record["elements"] < record["held"] <= 0.55 * record["elements"]
    directory = words.parent / "chain/outputs/checkpoints"
    (_, newest), *_ = files.numbered(directory)
    names = files.companions(newest)
    assert f"-step{CRASH:06d}-" in newest.name and len(names) == 4
    assert all("-of-00002-" in name for name in names), "of one replica, and its best weights"
    records = go(words, "chain", 1, "fsdp", {"dropout": False})
    assert f"step {CRASH} of {STEPS}" in records[0]["log"]
    seen.update(losses(records))
    assert seen == pytest.approx(losses(alone), abs=1e-5)
    assert gap(weights(words, "chain"), weights(words, "alone")) < 1e-5


@pytest.mark.long
def test_fsdp_continues_a_run_of_ddp_with_its_best_weights(words: Path, ddp: Records) -> None:
    go(words, "crashed", 2, "ddp", {"crash_at": CRASH})
    directory = words.parent / "crashed/outputs/checkpoints"
    before = files.read(files.newest_path(directory) or Path())
    assert before["best_weights"] is not None
    records = go(words, "crashed", 2, "fsdp", checkpoint_steps=1)
    assert min(map(int, losses(records))) == CRASH + 1
    assert gap(weights(words, "crashed"), weights(words, "ddp")) < 1e-5
    after = files.newest_path(directory)
    assert after
    state = files.read(after)
    assert gap(state["state_dict"], state["best_weights"]) > 0
    assert before["state_dict"].keys() == state["state_dict"].keys()
    assert {path.name for path in directory.glob("*.shard")} == {
        name for _, path in files.numbered(directory) for name in files.companions(path)
    }
    assert "best weights:" in records[0]["log"]


@pytest.mark.long
def test_a_host_that_is_lost_in_a_write_leaves_the_checkpoint_before(
    words: Path, fsdp: Records
) -> None:
    """The resumed run ends with the weights of an uninterrupted one."""
    lost = {"hosts": True, "kill_at": CRASH + 2}  # an epoch's end makes two checkpoints
    go(words, "lost", 2, "fsdp", lost, KILLED)
    folders = [words.parent / f"lost/host{rank}/outputs/checkpoints" for rank in range(2)]
    number, newest = files.numbered(folders[0])[0]
    assert number == CRASH + 1 and (folders[1] / ".half.shard").exists()
    kept = [sorted(folder.glob("[0-9]*.shard")) for folder in folders]
    assert all(f"-{rank:05d}-of-" in path.name for rank in range(2) for path in kept[rank])
    assert files.KEEP < len(kept[1]) <= files.KEEP + 3, "older ones are removed there, too"
    # Both hosts' files on one host resume with the other strategy.
    shutil.copytree(words.parent / "lost/host0", words.parent / "moved")
    for path in kept[1]:
        shutil.copy(path, words.parent / "moved/outputs/checkpoints")
    records = go(words, "moved", 2, "ddp")
    assert f"step {CRASH} of {STEPS}" in records[0]["log"]
    assert min(map(int, losses(records))) == CRASH + 1
    assert gap(weights(words, "moved"), weights(words, "fsdp")) < 1e-5
    # SageMaker restores one folder on every host. A damaged shard: the checkpoint before is used.
    for path in [*folders[0].glob("0*"), *kept[1]]:
        for folder in folders:
            if not (folder / path.name).exists():
                shutil.copy(path, folder)
    other = folders[0] / files.companions(newest)[1]
    other.write_bytes(other.read_bytes()[:-1])
    records = go(words, "lost", 2, "fsdp", {"hosts": True})
    assert f"step {CRASH - 1} of {STEPS}" in records[0]["log"]
    assert not list(folders[1].glob(".*.shard"))
    assert gap(weights(words, "lost/host0"), weights(words, "fsdp")) == 0.0
    (_, newest), *_ = files.numbered(folders[0])
    assert files.mark_of(newest) == files.FINISHED
