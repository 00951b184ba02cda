"""The writer copies a state at once and writes it later, each position once."""

import math
import threading
from collections import Counter, OrderedDict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from smlightning.checkpoints import files
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.cluster.shards import snapshot
from smlightning.errors import UserError


def steps(directory: Path) -> list[int]:
    """Steps of the checkpoints, newest first."""
    return [
        int(path.name.split("-")[1].removeprefix("step")) for _, path in files.numbered(directory)
    ]


def begin(writer: CheckpointWriter, state: dict[str, Any], position: Position) -> None:
    writer.hold(state, position)
    writer.write()


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
    begin(writer, {"weights": weights}, Position(step=1))
    weights.zero_()
    gate.opened.set()
    writer.finish()
    assert files.read(files.numbered(tmp_path)[0][1])["weights"].tolist() == [1, 1, 1]


def test_the_next_checkpoint_follows_the_one_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    writer = CheckpointWriter(tmp_path)
    begin(writer, {"x": 1}, Position(step=1))
    assert writer.busy() and not writer.failed()
    threading.Timer(0.1, gate.opened.set).start()
    begin(writer, {"x": 3}, Position(step=3))
    writer.finish()
    assert steps(tmp_path) == [3, 1] and not writer.busy()


def write(writer: CheckpointWriter, state: dict[str, Any], position: Position) -> None:
    begin(writer, state, position)
    while writer.busy():
        threading.Event().wait(0.001)


def test_a_position_is_not_written_twice(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for _ in range(2):
        write(writer, {"x": 1}, Position(step=1))
        assert steps(tmp_path) == [1]
    write(writer, {"x": 1}, Position(step=1, complete=True))
    assert steps(tmp_path) == [1, 1]


def test_each_checkpoint_is_a_line_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = CheckpointWriter(tmp_path)
    for step in (1, 390):
        begin(writer, {}, Position(step=step))
        writer.finish()
    (_, newest), (_, first) = files.numbered(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"checkpoint: {first}", f"checkpoint: {newest}"]
    assert newest.name.startswith("000002-step000390-")


def test_best_weights_are_written_when_they_change_and_not_again(tmp_path: Path) -> None:
    writer, written = CheckpointWriter(tmp_path), []
    for step in range(1, 2 * files.KEEP + 4):
        if step in (1, files.KEEP + 3):
            writer.keep_validated({"weight": torch.tensor(float(step))})
            writer.choose_validated()
        write(writer, {"weight": torch.tensor(0.0)}, Position(step=step))
        written.append(*files.companions(files.numbered(tmp_path)[0][1]))
    assert len(set(written)) == 2
    assert written[files.KEEP + 1] != written[files.KEEP + 2]
    paths = [path for _, path in files.numbered(tmp_path)]
    assert len(paths) == files.KEEP
    named = {name for path in paths for name in files.companions(path)}
    assert named == {path.name for path in tmp_path.glob("*.shard")}


def test_a_failure_is_raised_by_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Path:
        raise UserError("no space", "free some")

    writer = CheckpointWriter(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        write(writer, {"x": 1}, Position(step=1))
    assert writer.failed()
    write(writer, {"x": 1}, Position(step=2))
    assert steps(tmp_path) == [], "after a failure nothing more is written"
    with pytest.raises(UserError, match="no space"):
        writer.finish()


class Percent(float):
    """An object of a user's class."""


@pytest.mark.parametrize("value", [Percent(1.0), {Percent(1.0)}, [[Percent(1.0)]], print])
def test_what_no_checkpoint_can_hold_is_left_out_with_one_line(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = CheckpointWriter(tmp_path)
    for step in (1, 2):
        state = {"callbacks": {"Own": [{"x": value, "y": 1}]}, "hyper_parameters": {"z": value}}
        write(writer, state, Position(step=step))
    writer.finish()
    read = files.read(files.numbered(tmp_path)[0][1])
    assert read["callbacks"] == {"Own": [{"y": 1}]} and read["hyper_parameters"] == {}
    out = capsys.readouterr().out
    assert out.count("checkpoint: left out, since a resume does not need them: hyper_p") == 1
    assert out.count("inexact: after a resume, callbacks.Own.0.x (") == 1


@pytest.mark.parametrize("key", ["state_dict", "optimizer_states"])
def test_a_part_of_weights_or_optimizers_is_not_left_out(key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{key}\.0\.x is a Percent; expected plain values"):
        CheckpointWriter(tmp_path).hold({key: {0: {"x": Percent(1.0)}}}, Position(step=1))


def test_what_is_accepted_is_read_again(tmp_path: Path) -> None:
    """Also where the user has allowed a class."""
    values = [None, True, 1, 1.5, 1j, "x", b"x", bytearray(b"x"), {1, "x"}, torch.float16]
    values += [torch.device("cpu"), torch.Size([2]), OrderedDict(a=1), Counter("aab"), (1, [2])]
    with torch.serialization.safe_globals([Percent]):
        write(writer := CheckpointWriter(tmp_path), {"x": [*values, Percent(2)]}, Position(step=1))
        writer.finish()
        assert files.read(files.numbered(tmp_path)[0][1])["x"] == [*values, Percent(2)]


def test_training_may_change_plain_values_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    values = [{1}, bytearray(b"x"), [1], {"a": 1}, {"deep": [{2}]}]
    expected = deepcopy(values)
    writer = CheckpointWriter(tmp_path)
    begin(writer, {"x": values}, Position(step=1))
    values[0].add(2)
    values[1].extend(b"y")
    values[2].append(3)
    values[3]["a"] = 2
    values[4]["deep"][0].add(3)
    gate.opened.set()
    writer.finish()
    assert files.read(files.numbered(tmp_path)[0][1])["x"] == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_replace_no_checkpoint(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A buffer may hold infinity, as masks do; and so may weights that are not trained."""
    writer = CheckpointWriter(tmp_path)
    state = {"weight": torch.ones(3), "mask": torch.tensor([value]), "frozen": torch.ones(1)}
    for step in range(1, files.KEEP + 4):
        if step == 3:
            state["weight"][1] = value
        writer.hold({"state_dict": state}, Position(step=step), ["weight", "frozen"])
        writer.write()
        writer.finish()
    assert steps(tmp_path) == [2, 1]
    assert writer.written == Position(step=2)
    newest = files.numbered(tmp_path)[0][1]
    assert (
        f"step 3: weights are not finite; the last good one is {newest}" in capsys.readouterr().err
    )


def test_weights_whose_sum_overflows_are_written(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    state = {"large": torch.full((4,), 1e38), "double": torch.tensor([1e300], dtype=torch.float64)}
    writer.hold({"state_dict": state}, Position(step=1), list(state))
    writer.write()
    writer.finish()
    assert steps(tmp_path) == [1]


def test_a_snapshot_uses_the_memory_of_the_one_before() -> None:
    state = {"a": torch.ones(2), "list": [torch.zeros(3), 4], "pair": (torch.ones(1), "x")}
    memory: dict[str, torch.Tensor] = {}
    first = snapshot(state, memory)
    state["a"] += 1
    second = snapshot(state, memory)
    assert second["a"] is first["a"] and second["a"].tolist() == [2, 2]
    assert second["list"][0] is first["list"][0] and second["pair"][0] is first["pair"][0]
    assert second["list"][1] == 4 and second["pair"][1] == "x"
    other = snapshot({"a": torch.ones(5), "list": [], "pair": torch.ones(1)}, memory)
    assert other["a"] is not first["a"] and other["a"].tolist() == [1] * 5
