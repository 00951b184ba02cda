"""What the writer writes, when it waits, and what it leaves out."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.snapshot import snapshot
from smlightning.checkpoints.writer import CheckpointWriter, ShardWriter
from smlightning.cluster.location import Cluster
from smlightning.cluster.rendezvous import RankStore
from smlightning.errors import UserError


def steps(directory: Path) -> list[int]:
    """Of the checkpoints there, newest first."""
    return [
        int(path.name.split("-")[1].removeprefix("step")) for _, path in files.numbered(directory)
    ]


class Gate:
    """Holds the writer's thread before each file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        write = files.write

        def waiting(*args: Any) -> Path:
            assert self.opened.wait(20)
            return write(*args)

        monkeypatch.setattr(files, "write", waiting)


def test_training_may_change_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    writer, weights = CheckpointWriter(tmp_path), torch.ones(3)
    writer.write({"weights": weights}, Position(step=1))
    weights.zero_()
    gate.opened.set()
    writer.finish()
    assert files.load(files.numbered(tmp_path)[0][1])["weights"].tolist() == [1, 1, 1]


def test_the_thread_works_on_the_gpu_of_the_thread_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread's own is GPU 0, where each rank would make a context."""
    calls: list[tuple[str, int]] = []  # (thread, device) of each call
    write = files.write

    def writes(*args: Any) -> Path:
        calls.append((threading.current_thread().name, -1))
        return write(*args)

    def sets_device(device: int) -> None:
        calls.append((threading.current_thread().name, device))

    monkeypatch.setattr(files, "write", writes)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", sets_device)
    stream = SimpleNamespace(record_event=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    writer = CheckpointWriter(tmp_path)
    writer.write({"weights": torch.ones(3)}, Position(step=1))
    writer.finish()
    assert calls == [("checkpoint_0", 3), ("checkpoint_0", -1)]


class Moments(NamedTuple):
    mean: torch.Tensor
    count: int


def test_a_named_tuple_becomes_a_plain_one(tmp_path: Path) -> None:
    """Loading makes no object of a class."""
    writer = CheckpointWriter(tmp_path)
    writer.write({"seen": [Moments(torch.ones(2), 3)]}, Position(step=1))
    writer.finish()
    ((mean, count),) = files.load(files.numbered(tmp_path)[0][1])["seen"]
    assert mean.tolist() == [1, 1] and count == 3


def test_it_is_busy_while_another_is_written_which_the_next_one_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    writer = CheckpointWriter(tmp_path)
    writer.write({"x": 1}, Position(step=1))
    assert writer.busy() and not writer.failed()
    threading.Timer(0.1, gate.opened.set).start()
    writer.write({"x": 3}, Position(step=3))
    writer.finish()
    assert steps(tmp_path) == [3, 1] and not writer.busy()


def write(writer: CheckpointWriter, state: dict[str, Any], position: Position) -> None:
    writer.write(state, position)
    while writer.busy():
        threading.Event().wait(0.001)


def test_a_position_is_not_written_twice(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for _ in range(2):
        write(writer, {"x": 1}, Position(step=1))
        assert steps(tmp_path) == [1]
    write(writer, {"x": 1}, Position(step=1).finished())
    assert steps(tmp_path) == [1, 1]


def test_the_position_that_a_run_resumed_from_is_not_written_again(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.resume_from(Position(step=4))
    write(writer, {"x": 1}, Position(step=4))
    assert steps(tmp_path) == []


def test_best_weights_are_written_when_they_change_and_not_again(tmp_path: Path) -> None:
    writer, written = CheckpointWriter(tmp_path), []
    for step in range(1, 2 * files.KEEP + 4):
        if step in (1, files.KEEP + 3):
            writer.keep_best({"weight": torch.tensor(float(step))})
        write(writer, {"weight": torch.tensor(0.0)}, Position(step=step))
        written.append(files.best_file(files.numbered(tmp_path)[0][1]))
    assert len(set(written)) == 2 and None not in written
    assert written[files.KEEP + 1] != written[files.KEEP + 2]
    assert len(files.numbered(tmp_path)) == files.KEEP


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same folder", "another folder"])
def test_best_weights_of_the_run_before_are_kept(elsewhere: bool, tmp_path: Path) -> None:
    before = tmp_path / "before" if elsewhere else tmp_path
    first = CheckpointWriter(before)
    first.keep_best({"weight": torch.tensor(5.0)})
    write(first, {"x": 1}, Position(step=1))
    best = files.best_file(files.numbered(before)[0][1])
    again = CheckpointWriter(tmp_path)
    again.resume_from(Position(step=1), files.load(best), None if elsewhere else best)
    assert again.best_weights and again.best_weights["weight"] == 5
    write(again, {"x": 2}, Position(step=2))
    named = files.best_file(files.numbered(tmp_path)[0][1])
    assert named and named.parent == tmp_path
    assert (named == best) is not elsewhere
    assert files.load(named)["weight"] == 5


def test_a_failure_is_told_and_raised_when_asked_for(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    write(writer, {"path": Path("somewhere")}, Position(step=1))
    assert writer.failed()
    write(writer, {"x": 1}, Position(step=2))
    assert steps(tmp_path) == [], "after a failure nothing more is written"
    with pytest.raises(UserError):
        writer.finish()


def test_a_snapshot_uses_the_memory_of_the_one_before() -> None:
    state = {"a": torch.ones(2), "list": [torch.zeros(3), 4], "pair": (torch.ones(1), "x")}
    first = snapshot(state)
    state["a"] += 1
    second = snapshot(state, first)
    assert second["a"] is first["a"] and second["a"].tolist() == [2, 2]
    assert second["list"][0] is first["list"][0] and second["pair"][0] is first["pair"][0]
    assert second["list"][1] == 4 and second["pair"][1] == "x"
    other = snapshot({"a": torch.ones(5), "list": [], "pair": torch.ones(1)}, first)
    assert other["a"] is not first["a"] and other["a"].tolist() == [1] * 5


def test_a_state_dict_keeps_what_it_knows_of_versions() -> None:
    weights = torch.nn.BatchNorm1d(2).state_dict()
    assert snapshot(weights)._metadata == weights._metadata  # type: ignore[attr-defined]


TWO = Cluster(
    hosts=("localhost",),
    node_rank=0,
    rank=0,
    local_rank=0,
    local_world_size=2,
    world_size=2,
    launcher="torchrun",
    backend="gloo",
    device="cpu",
    main_address="127.0.0.1",
    main_port=7777,
)
SHARD = {"shard": "1", "best": ""}


class Asked:
    """The ranks' store, as rank 0 asks it: after that question rank 1 says that its shard is
    written, if it is, and ends.
    """

    def __init__(self, question: int, is_written: bool) -> None:
        self.ranks = RankStore(torch.distributed.HashStore())
        self.question, self.is_written, self.asked = question, is_written, 0
        self.get = self.ranks.get

    def has(self, *keys: str) -> bool:
        answer = self.ranks.has(*keys)
        self.asked += 1
        if self.asked == self.question:
            if self.is_written:
                self.ranks.set("checkpoint/0/1", json.dumps(SHARD))
            self.ranks.set("end/1", "")
        return answer


@pytest.mark.parametrize("question", [1, 2, 3, 4])
def test_a_rank_may_write_and_end_while_rank_0_asks(question: int, tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, TWO, 0, shards=2)
    for is_written in (True, False):
        store = Asked(question, is_written)
        store.ranks.set("checkpoint/0/0", json.dumps({**SHARD, "shard": "0"}))
        vars(writer)["_store"] = store
        if is_written:
            assert [shard["shard"] for shard in writer._written_by_all(0)] == ["0", "1"]
            continue
        with pytest.raises(torch.distributed.DistError, match="ended before"):
            writer._written_by_all(0)
