"""Hooks of the model and of callbacks may change anything: a checkpoint holds none half done."""

import enum
import re
import shutil
import types
from functools import partial
from pathlib import Path
from typing import Any

import hooked
import pytest
import pytorch_lightning as pl
import torch
from hooked import CASES, Halved
from pytorch_lightning import callbacks
from torch.utils.data import DataLoader, WeightedRandomSampler

from small_training import (
    BATCHES,
    SIZE,
    Alone,
    Fit,
    Jittered,
    Line,
    Resumable,
    assert_same,
    rows,
    same,
    saved_weights,
)
from smlightning.cluster import ending, signals
from smlightning.errors import UserError
from smlightning_sagemaker.testing.processes import KILLED, run_ranks

OPTIONS = {"epochs": 3, "checkpoint_steps": 1}


MOMENTS = [
    ("before_batch", 2),
    ("before_epoch", 2),
    ("before_batch", 2 * BATCHES + 3),
    ("on_validation_batch_end", 5),  # the second epoch's
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_resumed_run_repeats_no_hook(
    name: str, moment: tuple[str, int], fit: Fit, alone: Alone
) -> None:
    model, makers = CASES[name]

    def run(output_dir: str, **more: Any) -> None:
        every = tuple(make() for make in makers)
        fit(model, Resumable, callbacks=every, output_dir=output_dir, **OPTIONS, **more)

    run("alone")
    run("resumed", crash=moment)
    run("resumed")
    assert_same("alone", "resumed", name)


class Phase(enum.Enum):
    WARMUP = 0.1
    MAIN = 1.0


class Shard(torch.Tensor):
    """A rank's part, as of FSDP's tensors."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


class Phased(Line):
    """Has an attribute that no checkpoint holds, and others that change."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.began = 0
        self.phase = self.first = Phase.WARMUP
        self.counts = types.SimpleNamespace(batches=0)
        self.folder = Path()
        self.slow = [torch.zeros(1).as_subclass(Shard)]

    def on_train_start(self) -> None:
        self.began += 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.current_epoch:
            self.phase = Phase.MAIN
        self.counts.batches += 1
        self.slow[0].add_(1)
        return super().training_step(batch, batch_idx)


def test_a_resumed_run_prints_which_attributes_begin_anew(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its first checkpoint, and after the resume; what its own on_train_start has set stays."""
    fit(Phased, Resumable, crash=("before_batch", BATCHES + 4), **OPTIONS)
    model = fit(Phased, Resumable, **OPTIONS).lightning_module
    lines = [text for text in capsys.readouterr().out.splitlines() if "inexact" in text]
    anew = "checkpoint: inexact: after a resume, Phased.slow will start anew; give each the methods"
    assert lines[1] == "resume: inexact: Phased.slow cannot be restored"
    assert len(lines) == 3 and lines[0] == lines[2] and lines[0].startswith(anew)
    assert model.first is Phase.WARMUP and model.phase is Phase.MAIN
    assert model.counts.batches == 3 * BATCHES and model.began == 1


class Weighted(Resumable):
    """Keeps its data set and its sampler."""

    def setup(self, stage: str) -> None:
        self.points = Jittered(rows(SIZE * BATCHES))

    def train_dataloader(self) -> DataLoader:
        self.sampler = WeightedRandomSampler([1.0] * SIZE * BATCHES, SIZE * BATCHES)
        return DataLoader(self.points, SIZE, sampler=self.sampler)


class Harder(Line):
    """Changes how rows are read and drawn after each epoch."""

    def on_train_epoch_end(self) -> None:
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        data.points.jitter += 0.1
        data.sampler.weights[:SIZE] *= 2.0


class Restoring(Weighted):
    def state_dict(self) -> dict[str, Any]:
        return {"jitter": self.points.jitter, "weights": self.sampler.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.points.jitter, self.weights = state_dict["jitter"], state_dict["weights"]

    def train_dataloader(self) -> DataLoader:
        loader = super().train_dataloader()
        self.sampler.weights = getattr(self, "weights", self.sampler.weights)
        return loader


@pytest.mark.parametrize("moment", [("before_epoch", 2), ("before_batch", BATCHES + 3)])
def test_what_training_changes_in_the_data_is_restored_by_the_data_or_printed(
    moment: tuple[str, int], fit: Fit, alone: Alone, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in (Weighted, Restoring):
        fit(Harder, data, output_dir=data.__name__, crash=moment, **OPTIONS)
        capsys.readouterr()
        fit(Harder, data, output_dir=data.__name__, **OPTIONS)
        lines = [text for text in capsys.readouterr().out.splitlines() if ": inexact" in text]
        changed = "resume: inexact: Weighted.points.jitter, Weighted.sampler.weights cannot be "
        assert any(line.startswith(changed) for line in lines) == (data is Weighted), lines
    assert_same(alone(Harder, Restoring, **OPTIONS)[0], "Restoring", moment)
    assert not lines


RECORDED = ("last", "best", "metrics")


@pytest.mark.long
def test_ranks_keep_what_each_has_changed(tmp_path: Path) -> None:
    """Also their sums of metrics; on another number of ranks a line says what begins anew."""

    def go(folder: str, ranks: int, kill_at: int = 0) -> list[dict[str, Any]]:
        body = partial(hooked.run, name="ranks", kill_at=kill_at)
        return run_ranks(body, tmp_path / folder, ranks, KILLED if kill_at else 0)

    alone = go("alone", 2)
    go("resumed", 2, kill_at=BATCHES + 4)
    shutil.copytree(tmp_path / "resumed", tmp_path / "fewer")
    go("resumed", 2, kill_at=5)  # stopped twice
    resumed = go("resumed", 2)
    for one, other in zip(alone, resumed, strict=True):
        assert [one[name] for name in RECORDED] == [other[name] for name in RECORDED]
        assert "inexact" not in other["log"]
    # Validated after the last epoch, whose part before the kill is in the mean.
    metrics = [record[0]["metrics"] for record in (alone, resumed)]
    assert metrics[0] == metrics[1]
    (line,) = [text for text in go("fewer", 1)[0]["log"].splitlines() if "inexact" in text]
    assert "Ranked.noise" in line and "self.log.training_step.train/mean" in line


@pytest.mark.long
def test_ranks_watch_the_same_loss_after_a_kill(tmp_path: Path) -> None:
    """The kill is within an interval, of which each rank has its own sum."""

    def go(folder: str, kill_at: int = 0) -> list[dict[str, Any]]:
        body = partial(hooked.run, name="a schedule by the log's loss", kill_at=kill_at)
        return run_ranks(body, tmp_path / folder, 2, KILLED if kill_at else 0)

    alone = go("alone")
    assert "train/loss=" in alone[0]["log"]
    for kill_at in (3, BATCHES + 7):
        go(f"{kill_at}", kill_at)
        for one, other in zip(alone, go(f"{kill_at}"), strict=True):
            assert [one[name] for name in RECORDED] == [other[name] for name in RECORDED]
            assert "inexact" not in other["log"]
            printed = [re.findall(r"train/loss=\S+ lr=\S+", each["log"]) for each in (one, other)]
            assert printed[0][len(printed[0]) - len(printed[1]) :] == printed[1]


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_killed_runs_end_as_undisturbed_ones(name: str, tmp_path: Path) -> None:
    """SIGKILL at each second batch of three epochs, from the run before or anew."""

    def go(folder: str, kill_at: int = 0) -> dict[str, Any]:
        body = partial(hooked.run, name=name, kill_at=kill_at)
        return run_ranks(body, tmp_path / folder, 1, KILLED if kill_at else 0)[0]

    alone = go("alone")
    for kill_at in range(3, 3 * BATCHES, 4):
        folder = f"killed-{kill_at}"
        go(folder, kill_at)
        resumed = go(folder)
        assert [alone[each] for each in RECORDED] == [resumed[each] for each in RECORDED], kill_at


class Swapping(Line):
    """Validates an average of its weights, as many models do by hand.

    A signal arrives within the validation after ``stopped_at`` steps.
    """

    stopped_at = -1

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(self.width, 1))

    def exchange(self) -> None:
        weight = self.net[0].weight.data
        kept = weight.clone()
        weight.copy_(self.average)
        self.average.copy_(kept)

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.lerp_(self.net[0].weight.data, 0.3)

    def on_validation_epoch_start(self) -> None:
        self.exchange()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.validated = self.net[0].weight.detach().clone()
        if self.trainer.global_step == self.stopped_at:
            signals._state.requested = "SIGTERM"

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.exchange()


def test_the_validated_weights_are_the_best_and_a_stop_among_them_is_exact(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The average is in the weights' place while a signal arrives."""
    options = {"data": Resumable, "epochs": 1}
    model = fit(Swapping, output_dir="alone", **options).lightning_module
    assert torch.equal(saved_weights("alone")["0.weight"], model.validated)
    with monkeypatch.context() as patch:
        patch.setattr(Swapping, "stopped_at", BATCHES)
        try:
            with pytest.raises(ending.Stopped):
                fit(Swapping, output_dir="stopped", **options)
        finally:
            signals._state.requested, ending._state.stopped_at = "", float("inf")
    fit(Swapping, output_dir="stopped", **options)
    assert_same("alone", "stopped", "a stop within validation")


def test_weights_that_are_not_averaged_yet_are_validated_and_saved(fit: Fit) -> None:
    """EMAWeightAveraging would put the initial weights in their place (Lightning#21724)."""
    late = callbacks.EMAWeightAveraging(update_starting_at_step=1000)
    options = {"data": Resumable, "epochs": 2}
    fit(Line, callbacks=(late,), output_dir="averaged", **options)
    fit(Line, output_dir="plain", **options)
    assert same(saved_weights("averaged"), saved_weights("plain"))


def test_a_callback_before_the_projects_is_rejected(fit: Fit) -> None:
    class Before(pl.Trainer):
        """As train.py with ``callbacks=[Halved(), *run.callbacks()]``."""

        def __init__(self, callbacks: Any, **given: Any) -> None:
            super().__init__(callbacks=[Halved(), *callbacks], **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl, "Trainer", Before)
        with pytest.raises(UserError, match="Halved comes before"):
            fit(Line, Resumable)
