"""Lines, curves and loggers show the progress of training."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks

from small_training import (
    BATCHES,
    SIZE,
    Fit,
    Line,
    Numbers,
    curve_rows,
    directory,
    rows,
    same,
    saved_weights,
)
from smlightning.checkpoints import files
from smlightning.reports import curves, progress


def test_lines_curves_and_every_logger_have_each_value_once(
    fit: Fit, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Talking(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("train/x", float(batch_idx), on_step=True, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.log("train/end", 1.0)

        def on_validation_epoch_end(self) -> None:
            self.log("val/again", -float(self.current_epoch))  # as max, the first epoch's is best
            super().on_validation_epoch_end()

    saver = callbacks.ModelCheckpoint(monitor="val/again", mode="max", save_weights_only=True)
    stopper = callbacks.EarlyStopping("val/again", mode="max", patience=2, verbose=True)
    rates = callbacks.LearningRateMonitor(logging_interval="epoch")
    trainer = fit(
        Talking,
        best=("max", "val/again"),
        epochs=9,
        callbacks=(saver, stopper, rates),
        loggers=(pl.loggers.CSVLogger("outputs", "table", ""),),
    )
    out = capsys.readouterr().out
    epochs = 3
    assert trainer.current_epoch == epochs
    assert "Metric val/again improved" in caplog.text, "Lightning's callbacks may speak"
    assert re.search(r"^training ended early, at step 24 of 72: .*val/again", out, re.M)
    kept = torch.load(saver.best_model_path, weights_only=True)["state_dict"]
    net = {name.removeprefix("net."): x for name, x in kept.items() if name.startswith("net.")}
    assert same(saved_weights(), net)

    expected = {
        "train/x_step": 2 * epochs,
        "train/x_epoch": epochs,
        "train/end": epochs,
        "val/loss": epochs,
        "val/again": epochs,
        "lr-Adam": epochs,
        "train/loss": 2 * epochs,
        "lr": 2 * epochs,
        "test/loss": 1,
    }
    board = EventAccumulator("outputs/tensorboard")
    board.Reload()
    with Path("outputs/table/metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    for name, times in expected.items():
        points = {event.step: event.value for event in board.Scalars(name)}
        assert len(board.Scalars(name)) == len(points) == times, f"TensorBoard: {name}"
        in_table = {int(row["step"]): float(row[name]) for row in table if row[name]}
        assert in_table == pytest.approx(points), f"CSVLogger: {name}"
        in_curves = [float(row[name]) for row in curve_rows() if name in row]
        assert in_curves == pytest.approx(list(points.values())), f"curves: {name}"
        printed = [float(x) for x in re.findall(rf"^step=.*\s{name}=(\S+)", out, re.M)]
        assert printed == pytest.approx(in_curves, rel=1e-5), f"lines: {name}"
    # LearningRateMonitor logs no epoch.
    assert [row["epoch"] for row in curve_rows() if "lr-Adam" in row] == ["1", "2", "3"]


def test_a_resumed_run_has_the_models_metrics_of_the_step_of_its_checkpoint(fit: Fit) -> None:
    class Own(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("train/own", float(self.trainer.global_step))
            return super().training_step(batch, batch_idx)

    fit(Own, checkpoint_steps=4, output_dir="resumed", crash=("on_train_batch_end", 6))
    fit(Own, checkpoint_steps=4, output_dir="resumed")
    fit(Own)
    assert curve_rows("resumed") == curve_rows()
    assert {"4", "8"} <= {row["step"] for row in curve_rows() if "train/own" in row}


def test_lines_have_speed_and_the_share_of_waiting_for_data(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader moves the clock by 0.8 s a batch, a step by 0.1 s, and a callback between batches by
    0.1 s, which does not count as waiting for data.
    """
    clock = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])

    def collate(items: list[Any]) -> Any:
        clock[0] += 0.8
        return torch.utils.data.default_collate(items)

    class Slow(Numbers):
        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(rows(SIZE * BATCHES), SIZE, collate_fn=collate)

    class Working(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            clock[0] += 0.1
            return super().training_step(batch, batch_idx)

    class Saving(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            clock[0] += 0.1

    fit(Working, Slow, callbacks=(Saving(),))
    with Path("outputs/curves.csv").open() as file:
        lines = [row for row in csv.DictReader(file) if row["samples_per_second"]]
    assert len(lines) == 4
    assert all(0.75 <= float(row["data_wait"]) <= 0.85 for row in lines)
    # The callback comes after the line, so its last call is in the next interval.
    assert all(abs(float(row["samples_per_second"]) - SIZE) < 0.2 for row in lines)
    assert all(0 < float(row["host_gib"]) < 1024 for row in lines)


def test_a_run_survives_an_error_in_draw(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    class Artless(Line):
        def draw(self, directory: Path) -> None:
            assert saved_weights()
            raise ValueError("no such colour")

    fit(Artless)
    output = capsys.readouterr()
    assert "ValueError: no such colour" in output.err
    assert re.fullmatch(r"test/loss \d+\.\d{4}", output.out.splitlines()[-1])
    assert (directory() / files.ENDED).is_file()


def test_training_step_may_skip_a_batch(fit: Fit) -> None:
    class Skipping(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx % 4 == 1 else 0 * loss + 2.0

    fit(Skipping)
    assert [row["train/loss"] for row in curve_rows()] == ["2.0"] * 4


def test_a_flat_curve_of_memory_lies_within_its_panel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, path: drawn.append(figure))
    values = [{"step": step, "host_gib": 1.2 + step / 1000} for step in range(3)]
    curves.write_curves(values, tmp_path)
    (panel,) = drawn[0].axes
    bottom, top = panel.get_ylim()
    assert bottom == 0 and top > 1.03 * values[-1]["host_gib"]
    curves.pyplot().close(drawn[0])
