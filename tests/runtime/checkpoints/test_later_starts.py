"""Runs that are interrupted, started again, made longer or discarded."""

import math
from typing import Any

import pytest
import torch
from pytorch_lightning import callbacks
from torch.utils.data import DataLoader

from small_training import (
    BATCHES,
    SIZE,
    Line,
    Numbers,
    Resumable,
    directory,
    newest_state,
    rows,
    same,
    saved_weights,
)
from smlightning.checkpoints import files
from smlightning.cluster import ending, signals
from smlightning.errors import UserError

ORDINARY = 2 * BATCHES  # batches of a run of two epochs


def position() -> dict[str, Any]:
    """The position in the newest checkpoint."""
    return newest_state()["position"]


def test_a_killed_longer_run_is_not_complete(fit) -> None:
    fit(data=Resumable)
    path = str(files.newest_path(directory()))
    longer = {"data": Resumable, "epochs": 6, "checkpoint_steps": 1}
    fit(**longer, resume=path, crash=("on_train_batch_end", 3))
    assert ORDINARY < position()["step"] < 6 * BATCHES and not position()["complete"]
    assert fit(**longer).global_step == 6 * BATCHES


class Failing(Line):
    """As with a mistyped option: its first step fails."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise UserError("no such width", "pass another")


def test_a_run_is_discarded_by_the_first_step_of_the_next(
    fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stays so if that one is killed before its first checkpoint."""
    fit(data=Resumable, crash=("on_train_batch_end", BATCHES + 3), checkpoint_steps=1)
    capsys.readouterr()
    with pytest.raises(UserError):
        fit(Failing, data=Resumable, resume="never")
    assert "training from the start" not in capsys.readouterr().out
    (_, newest), *_ = files.numbered(directory())
    assert not files.mark_of(newest)
    late = {"data": Resumable, "checkpoint_steps": 100}
    fit(**late, resume="never", crash=("on_train_batch_end", 2))
    capsys.readouterr()
    assert len(fit(**late).lightning_module.trained) == ORDINARY
    assert "discarded; training from the start" in capsys.readouterr().out


def test_files_of_another_program_stay(fit) -> None:
    directory().mkdir(parents=True)
    own = directory() / "model-best-epoch3.ckpt"  # as ModelCheckpoint may name it
    own.write_bytes(b"x")
    fit(data=Resumable)
    assert own.exists()


class Stopping(Line):
    """Gets a signal while it validates."""

    at_step = -1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        if not self.trainer.sanity_checking and self.trainer.global_step == self.at_step:
            signals._state.requested = "SIGTERM"


def forget_signal() -> None:
    """Reset the signal state to that of a new process."""
    signals._state.requested, ending._state.stopped_at = "", math.inf


@pytest.mark.parametrize("averaged", [False, True])
def test_a_stop_within_validation_changes_no_weights(
    averaged: bool, fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(output_dir: str) -> None:
        average = (callbacks.EMAWeightAveraging(decay=0.7),) if averaged else ()
        fit(Stopping, data=Resumable, callbacks=average, output_dir=output_dir)

    run("alone")
    with monkeypatch.context() as patch:
        patch.setattr(Stopping, "at_step", BATCHES)
        try:
            with pytest.raises(ending.Stopped):
                run("stopped")
        finally:
            forget_signal()
    run("stopped")
    assert same(saved_weights("alone"), saved_weights("stopped"))


def test_a_stop_at_the_start_prints_a_command_that_starts_again(
    fit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that resumes from another folder has no checkpoint of its own yet."""
    fit(data=Resumable, crash=("before_batch", 12), checkpoint_steps=1)
    path = str(files.newest_path(directory()))
    monkeypatch.setattr(signals._state, "requested", "SIGTERM")
    try:
        with pytest.raises(ending.Stopped):
            fit(data=Resumable, resume=path, output_dir="elsewhere")
    finally:
        forget_signal()
    said = capsys.readouterr().err
    assert "stopped by SIGTERM at step 11" in said and "--resume auto" not in said


class Generated(Numbers):
    """An ordinary loader that shuffles with its own generator."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(rows(SIZE * BATCHES), SIZE, shuffle=True, generator=self.generator)


@pytest.mark.parametrize("crash", [("before_epoch", 2), ("before_batch", 12)])
def test_a_loaders_own_generator_continues(crash: tuple[str, int], fit) -> None:
    options = {"data": Generated, "epochs": 2, "checkpoint_steps": 1}
    whole = fit(**options, output_dir="alone").lightning_module.trained
    before = fit(**options, output_dir="resumed", crash=crash).lightning_module.trained
    after = fit(**options, output_dir="resumed").lightning_module.trained
    assert whole == before + after and whole[:BATCHES] != whole[BATCHES:]
