"""Features of Lightning that one adds in `train.py` do there what they do in Lightning, with any model and any data."""

import csv
import inspect
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from pytorch_lightning import callbacks, profilers
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import train
from runtime import checkpoint_files, checkpoints, divided, loop_state, progress, report, resume, signals, tracking
from runtime.report import UserError

STEPS = 8  # of an epoch, of 6 rows each


def rows(n: int) -> TensorDataset:
    x = torch.linspace(-1, 1, n)[:, None]
    return TensorDataset(torch.arange(n), x, 3 * x + 1)


class Numbers(pl.LightningDataModule):
    """Points of a line in ordinary loaders; knows nothing of this project's batches."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    def train_dataloader(self) -> DataLoader:
        return DataLoader(rows(6 * STEPS), 6, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(rows(10), 5)

    test_dataloader = val_dataloader


class Stream(Numbers):
    class Rows(IterableDataset):
        def __iter__(self) -> Any:
            yield from rows(6 * STEPS)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.Rows(), 6)


class Line(pl.LightningModule):
    """A linear regression with dropout and a metric object."""

    width = 4

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(1, self.width), torch.nn.Dropout(0.5), torch.nn.Linear(self.width, 1)
        )
        self.error = torchmetrics.MeanMetric()
        self.register_buffer("known", torch.tensor([True, False]))
        self.trained: list[list[int]] = []  # rows of each batch
        self.evaluated: list[tuple[str, float]] = []  # what validation and test saw of the weights

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch[1]), batch[2])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append(batch[0].tolist())
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.error.update(self.loss(batch))
        self.log("val/loss", self.error)

    def on_validation_epoch_end(self) -> None:
        self.evaluated.append((str(self.trainer.state.fn.value), self.net[0].weight[0].item()))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test/loss", self.loss(batch))

    def on_test_epoch_end(self) -> None:
        self.evaluated.append(("test", self.net[0].weight[0].item()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    def save(self, directory: Path) -> None:
        torch.save(self.net.state_dict(), directory / "line.pt")

    def draw(self, directory: Path) -> None:
        pass


class Crash(Exception):
    """What ends a run here."""


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., pl.Trainer]:
    """Trains as `train.py` does whose owner replaced data and model, and changed the Trainer's arguments."""
    monkeypatch.setattr(report, "save_figure", lambda figure, path: report.pyplot().close(figure))
    start = train.train

    def run(
        model: type = Line,
        data: type = Numbers,
        best: tuple[str, str] = ("min", "val/loss"),
        callbacks: tuple = (),
        loggers: tuple = (),
        trainer: dict | None = None,
        crash: tuple[str, int] = ("", 0),
        **options: Any,
    ) -> pl.Trainer:
        made: list[pl.Trainer] = []

        class Edited(pl.Trainer):
            def __init__(self, **given: Any) -> None:
                own = [each for each in given["callbacks"] if type(each).__module__.startswith("runtime.")]
                given["callbacks"] = [*own, *callbacks]  # without those that this project's owner has added
                given["logger"] = [*given["logger"][:1], *loggers]
                super().__init__(**(given | (trainer or {})))
                made.append(self)

        calls = 0
        hook, at = crash
        original = getattr(checkpoints.Checkpoints, hook, None)

        def crashing(self: Any, *args: Any, **more: Any) -> None:
            nonlocal calls
            calls += 1
            original(self, *args, **more)  # type: ignore[misc]
            self.disk.finish()  # or a fast step's checkpoint is left out
            if calls == at:
                raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(pl, "Trainer", Edited)
            patch.setattr("data.Data", data)
            patch.setattr("model.Model", model)
            patch.setattr(train, "MODE", best[0])
            patch.setattr(train, "MONITOR", best[1])
            if hook:
                patch.setattr(checkpoints.Checkpoints, hook, crashing)
                with pytest.raises(Crash):
                    start(**{"epochs": 2, "log_every": 4, **options})
            else:
                start(**{"epochs": 2, "log_every": 4, **options})
        return made[0]

    return run


def weights(output: str = "outputs") -> dict[str, torch.Tensor]:
    return torch.load(Path(output, "model/line.pt"), weights_only=True)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def curves(output: str = "outputs") -> list[dict[str, str]]:
    with Path(output, "curves.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if v and k != "samples_per_second"} for row in csv.DictReader(file)]


def test_a_metric_that_validation_does_not_log_is_named_before_training(fit: Callable) -> None:
    class Named(Line):
        def on_train_start(self) -> None:
            raise AssertionError("it trains")

    with pytest.raises(UserError, match=r"those of the max val/bleu, but validation logged val/loss; log val/bleu"):
        fit(Named, best=("max", "val/bleu"))
    with pytest.raises(UserError, match="MODE is 'maximum'; set it to 'max' or 'min', whichever is best for val/loss"):
        fit(Named, best=("maximum", "val/loss"))


def test_what_the_test_at_the_end_lacks_is_named_before_training(fit: Callable) -> None:
    class Untested(Line):
        test_step = pl.LightningModule.test_step

    class Without(Numbers):
        test_dataloader = pl.LightningDataModule.test_dataloader

    with pytest.raises(UserError, match="are tested when training ends, and Untested has no test_step; add"):
        fit(Untested)
    with pytest.raises(UserError, match="are tested when training ends, and Without has no test_dataloader; add"):
        fit(data=Without)
    assert not list(Path("outputs/checkpoints").glob("*.ckpt"))


def test_a_training_loss_that_the_model_logs_is_warned_of(fit: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    class Own(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("train/loss", 7.0)
            return super().training_step(batch, batch_idx)

    fit(Own)
    warning = "warning: the model logs a train/loss beside the interval's mean, which is logged for it; give"
    assert capsys.readouterr().err.count(warning) == 1


def test_the_rate_of_a_line_is_that_of_its_step(fit: Callable) -> None:
    class Falling(Line):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 1.0)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 2.0**-step)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fit(Falling)
    assert [(row["step"], row["lr"]) for row in curves()[:2] if "lr" in row] == [("4", "0.125"), ("8", "0.0078125")]


def test_the_validation_before_training_changes_nothing_after_it(
    fit: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {}
    for output, steps in (("checked", 1), ("unchecked", 0)):
        model = fit(output_dir=output, trainer={"num_sanity_val_steps": steps}).lightning_module
        assert len(model.evaluated) == 3 + steps
        lines[output] = re.findall(r"step=.*(?:val|test)/loss.*", capsys.readouterr().out)
        lines[f"{output} rows"] = model.trained
    assert same(weights("checked"), weights("unchecked")) and curves("checked") == curves("unchecked")
    assert lines["checked"] == lines["unchecked"] and lines["checked rows"] == lines["unchecked rows"]


def test_a_profiler_measures_where_one_is_asked_for(fit: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    own = profilers.SimpleProfiler()
    fit(trainer={"profiler": own})
    assert own.recorded_durations["run_training_batch"]
    began: list[str] = []
    monkeypatch.setattr(profilers.PassThroughProfiler, "start", lambda _, name: began.append(name))
    fit(output_dir="plain")
    assert not [name for name in began if "batch" in name]


def test_what_is_logged_is_once_in_lines_curves_and_every_logger(
    fit: Callable, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Talking(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("train/x", float(batch_idx), on_step=True, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.log("train/end", 1.0)

        def on_validation_epoch_end(self) -> None:
            self.log("val/again", -float(self.current_epoch))  # gets no better after the first epoch, as max
            super().on_validation_epoch_end()

    saver = callbacks.ModelCheckpoint(monitor="val/again", mode="max", save_weights_only=True)
    stopper = callbacks.EarlyStopping("val/again", mode="max", patience=2, verbose=True)
    trainer = fit(
        Talking,
        best=("max", "val/again"),
        epochs=9,
        callbacks=(saver, stopper, callbacks.LearningRateMonitor(logging_interval="epoch")),
        loggers=(pl.loggers.CSVLogger("outputs", "table", ""),),
    )
    out = capsys.readouterr().out
    epochs = 3
    assert trainer.current_epoch == epochs and "Metric val/again improved. New best score" in caplog.text
    assert re.search(r"^training ended early, at step 24 of 72: Monitored metric val/again did not improve", out, re.M)

    kept = torch.load(saver.best_model_path, weights_only=True)["state_dict"]
    assert same(weights(), {name.removeprefix("net."): value for name, value in kept.items()})

    expected = {"train/x_step": 2 * epochs, "train/x_epoch": epochs, "train/end": epochs, "val/loss": epochs}
    expected |= {"val/again": epochs, "lr-Adam": epochs, "train/loss": 2 * epochs, "lr": 2 * epochs, "test/loss": 1}
    board = EventAccumulator("outputs/tensorboard")
    board.Reload()
    table = list(csv.DictReader(Path("outputs/table/metrics.csv").open()))  # noqa: SIM115
    for name, times in expected.items():
        points = {event.step: event.value for event in board.Scalars(name)}
        assert len(board.Scalars(name)) == len(points) == times, f"TensorBoard: {name}"
        in_table = {int(row["step"]): float(row[name]) for row in table if row[name]}
        assert in_table == pytest.approx(points), f"CSVLogger: {name}"
        in_curves = [float(row[name]) for row in curves() if name in row]
        assert in_curves == pytest.approx(list(points.values())), f"curves: {name}"
        printed = re.findall(rf"^step=.*\s{name}=(\S+)", out, re.M)
        assert [float(value) for value in printed] == pytest.approx(in_curves, rel=1e-5), f"lines: {name}"


def test_validation_and_test_use_the_best_weights_or_those_that_are_named(fit: Callable) -> None:
    class Scripted(Line):
        def on_validation_epoch_end(self) -> None:
            self.log("val/score", (0.5, 0.9, 0.1)[min(self.current_epoch, 2)])
            super().on_validation_epoch_end()

    saver = callbacks.ModelCheckpoint(save_top_k=-1)
    trainer = fit(Scripted, best=("max", "val/score"), epochs=3, callbacks=(saver,))
    model = trainer.lightning_module
    fitted = [weight for fn, weight in model.evaluated if fn == "fit"][1:]  # after the validation before training
    assert len(set(fitted)) == 3 and model.evaluated[-1] == ("test", fitted[1])
    assert weights()["0.weight"][0].item() == fitted[1]
    trainer.validate(model, datamodule=Numbers(), verbose=False)
    assert model.evaluated[-1] == ("validate", fitted[1])
    trainer.test(model, datamodule=Numbers(), verbose=False, ckpt_path=saver.best_model_path)  # of the last epoch
    assert model.evaluated[-1] == ("test", fitted[2])


def test_training_step_may_skip_a_batch(fit: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    class Skipping(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx % 4 == 1 else 0 * loss + 2.0

    clock = iter(range(10_000))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    fit(Skipping)
    assert [row["train/loss"] for row in curves()] == ["2.0"] * 4
    speeds = [row["samples_per_second"] for row in csv.DictReader(Path("outputs/curves.csv").open())]  # noqa: SIM115
    assert speeds == ["24.0"] * 4, "4 batches of 6 rows in what passed for a second"


@pytest.mark.parametrize("finder", [callbacks.LearningRateFinder(), callbacks.BatchSizeFinder()])
def test_finders_are_refused_and_what_is_advised_works(fit: Callable, finder: pl.Callback) -> None:
    sized = type("Sized", (Numbers,), {"batch_size": 6})  # or the second finds nothing to change
    with pytest.raises(UserError, match=f"{type(finder).__name__} would change an option .* a Trainer of its own"):
        fit(data=sized, callbacks=(finder,))
    if isinstance(finder, callbacks.LearningRateFinder):
        alone = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        found = pl.tuner.Tuner(alone).lr_find(Line(), datamodule=Numbers(), update_attr=False, num_training=30)
        assert found and len(found.results["lr"]) == 30


class Manual(Line):
    """Two optimizers, each stepped for every batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(layer.parameters(), 0.05) for layer in (self.net[0], self.net[2])]


def test_validation_within_epochs_chooses_the_best_weights_and_is_in_the_curves(fit: Callable) -> None:
    class Scripted(Line):
        def on_validation_epoch_end(self) -> None:
            self.log("val/score", float(self.global_step == STEPS + 3))
            super().on_validation_epoch_end()

    for data, options, steps in (
        (InOrder, {}, [3, 6, 8, 11, 14, 16]),
        (InOrder, {"accumulate_grad_batches": 2, "val_check_steps": 3}, [3, 4, 7, 8]),
        (InOrder, {"val_check_steps": 50}, [8, 16]),
        (Stream, {"max_steps": 14, "epochs": 9}, [3, 6, 8, 11, 14]),
    ):
        model = fit(Scripted, data, ("max", "val/score"), **{"val_check_steps": 3, "resume": "never", **options})
        assert [int(row["step"]) for row in curves() if "val/score" in row] == steps
        fitted = [weight for fn, weight in model.lightning_module.evaluated if fn == "fit"][1:]
        if STEPS + 3 in steps:
            assert model.lightning_module.evaluated[-1] == ("test", fitted[steps.index(STEPS + 3)])


def test_what_has_no_public_name_is_used_in_two_files() -> None:
    """And it is there: if this fails, Lightning changed, or code went elsewhere than to these."""
    private = re.compile(r"(?:trainer|loop|fetcher|connector)\._(?!_)\w+")
    used = {path.name: private.findall(path.read_text()) for path in Path(loop_state.__file__).parent.glob("*.py")}
    assert {name for name, found in used.items() if found} == {"loop_state.py", "signals.py"}
    trainer = pl.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    assert loop_state.steps(trainer) == 0
    loop = trainer.fit_loop
    assert loop._restarting is False and loop._data_fetcher is None and callable(loop.epoch_loop._should_check_val_fx)
    assert hasattr(trainer, "val_check_batch")


def test_deterministic_and_tf32_reach_torch(fit: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "as it was")  # Lightning sets it
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    seen: list[tuple[bool, str, bool]] = []

    class Asking(Line):
        def on_train_start(self) -> None:
            flags = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
            seen.append((torch.are_deterministic_algorithms_enabled(), *flags))

    try:
        for number, options in enumerate(({"deterministic": True, "precision": "tf32"}, {"precision": "32-true"})):
            trainer = fit(Asking, max_steps=1, output_dir=f"outputs{number}", **options)
            assert trainer.precision == "32-true"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
    assert seen == [(True, "high", True), (False, "highest", False)]


def test_several_optimizers_count_as_one_step(fit: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    fit(Manual, gradient_clip_val=0.0)
    said = capsys.readouterr().out
    assert re.findall(r"^step=(\d+) .*train/loss|^step=(\d+) .*test/loss", said, re.M)[-1] == ("", "16")
    assert f"-step{2 * STEPS:06d}-" in str(checkpoint_files.newest(Path("outputs/checkpoints")))
    with pytest.raises(UserError, match=r"max_steps=9 would .* each optimizer's steps, 2 after 1 global batches"):
        fit(Manual, gradient_clip_val=0.0, max_steps=9, resume="never")


class Plateau(Line):
    """A schedule that is updated after the epoch's last hook."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val/loss"}}


class Jittered(TensorDataset):
    """Moves a row's point a little whenever it is fetched, by each of the generators that people draw from."""

    def __getitem__(self, index: Any) -> Any:
        number, x, y = super().__getitem__(index)
        return number, x + 0.1 * (torch.rand(1) + np.random.rand() + random.random()).float(), y


class InOrder(Numbers):
    """Can start within an epoch."""

    start = (0, 0)

    class Batches(torch.utils.data.Sampler):
        def __init__(self, epoch: int, done: int) -> None:
            self.start = epoch, done

        def set_epoch(self, epoch: int) -> None:
            self.first = self.start[1] if epoch == self.start[0] else 0

        def __len__(self) -> int:
            return STEPS

        def __iter__(self) -> Any:
            yield from ([*range(6 * batch, 6 * batch + 6)] for batch in range(self.first, STEPS))

    def train_dataloader(self) -> DataLoader:
        epoch, done = self.start
        sampler = self.Batches(epoch, done * self.trainer.accumulate_grad_batches)  # type: ignore[union-attr]
        return DataLoader(Jittered(*rows(6 * STEPS).tensors), sampler=sampler, batch_size=None)


class AtOnce(callbacks.EarlyStopping):
    """Of a type of its own: train.py may have an EarlyStopping already."""


@pytest.mark.parametrize(
    ("model", "arguments", "options", "crashes"),
    [
        (Manual, {}, {"gradient_clip_val": 0.0}, [("on_train_batch_end", 13), ("on_train_epoch_start", 2)]),
        (Plateau, {}, {"epochs": 3}, [("on_train_batch_end", 11), ("on_train_batch_end", 16)]),
        (Plateau, {}, {"epochs": 3, "checkpoint_steps": 0}, [("on_train_epoch_start", 2), ("on_train_epoch_start", 3)]),
        (Line, {"val_check_interval": 3}, {}, [("on_train_batch_end", 3), ("on_validation_batch_end", 5)]),
        (Line, {}, {"val_check_steps": 3}, [("on_train_batch_end", at) for at in (3, 4, 8)]),
        (Line, {}, {"val_check_steps": 3}, [("on_validation_batch_end", at) for at in (2, 3, 6, 7)]),
        (Plateau, {}, {"val_check_steps": 3, "accumulate_grad_batches": 2}, [("on_train_batch_end", 10)]),
        (Line, {"check_val_every_n_epoch": 2}, {"log_every": 3}, [("on_train_batch_end", 8)]),
        (Line, {}, {"accumulate_grad_batches": 3}, [("on_train_batch_end", 11), ("on_train_batch_end", 8)]),
        (Line, {}, {"max_steps": 11, "log_every": 3}, [("on_train_batch_end", 11)]),
        (Line, {}, {"epochs": 9}, [("on_test_batch_end", 1)]),
    ],
)
def test_a_resumed_run_ends_as_the_uninterrupted(
    fit: Callable, model: type, arguments: dict, options: dict, crashes: list
) -> None:
    def go(output: str, **more: Any) -> pl.Trainer:
        stopper = AtOnce("val/loss", divergence_threshold=-1.0)  # where epochs are many
        extra = (stopper,) if options.get("epochs") == 9 else ()
        settings = {"output_dir": output, "checkpoint_steps": 1, **options, **more}
        return fit(model, InOrder, trainer=arguments, callbacks=extra, **settings)

    alone = go("alone")
    for number, crash in enumerate(crashes):
        go(f"resumed{number}", crash=crash)
        again = go(f"resumed{number}")
        assert again.global_step == alone.global_step, crash
        assert same(weights("alone"), weights(f"resumed{number}")), crash
        assert curves("alone") == curves(f"resumed{number}"), crash


def test_a_failing_picture_loses_nothing(fit: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    class Artless(Line):
        def draw(self, directory: Path) -> None:
            assert weights()
            raise ValueError("no such colour")

    fit(Artless)
    said = capsys.readouterr()
    assert "warning: Model.draw failed (ValueError: no such colour); nothing else is affected" in said.err
    assert re.fullmatch(r"test/loss \d+\.\d{4}", said.out.splitlines()[-1])
    assert Path("outputs/checkpoints/finished").is_file()


def test_an_ordinary_loader_is_resumed_as_exactly_as_is_said(fit: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    before = fit(crash=("on_train_batch_end", STEPS + 3), checkpoint_steps=1).lightning_module.trained[STEPS:]
    capsys.readouterr()
    after = fit(checkpoint_steps=1).lightning_module.trained
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("resume: ")]
    assert said[1] == (
        "resume: inexact, since Data has no `start`: its loader begins anew for the 5 batches left of epoch 2, "
        "so some samples come twice in it and others not at all"
    )
    times = Counter(row for batch in before + after for row in batch)
    assert len(before) == 3 and len(after) == 5 and max(times.values()) == 2 and len(times) < 6 * STEPS

    fit(crash=("on_train_epoch_start", 2), output_dir="other")
    capsys.readouterr()
    whole = fit(output_dir="other").lightning_module.trained
    assert "resume: from the start of epoch 2; Data has no `start`, so its loader may" in capsys.readouterr().out
    assert sorted(row for batch in whole for row in batch) == list(range(6 * STEPS))


def test_an_epoch_that_accumulation_does_not_divide(fit: Callable) -> None:
    """Lightning steps at the epoch's last batch all the same."""
    fit(accumulate_grad_batches=3)
    path = checkpoint_files.newest(Path("outputs/checkpoints"))
    assert path and "-step000006-" in path.name


def test_what_a_checkpoint_cannot_be_resumed_with_is_a_sentence(
    fit: Callable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wider(Line):
        width = 7

    def older(path: Path) -> Any:
        found = checkpoint_files.load(path)
        del found["callbacks"]["Checkpoints"]["position"]["validate"]
        return found

    fit(crash=("on_train_batch_end", STEPS + 3), checkpoint_steps=1)
    with pytest.raises(UserError) as refusal:
        fit(Wider)
    assert str(refusal.value) == (
        "The checkpoint is of another architecture (net.0.weight: (4, 1) there, (7, 1) here; net.0.bias: (4,) there, "
        "(7,) here; net.2.weight: (1, 4) there, (1, 7) here); restore the old one to resume, or train from the start "
        "with --resume never."
    )
    with monkeypatch.context() as patch, pytest.raises(UserError, match="was made by an older version of src/runtime"):
        patch.setattr(resume, "load", older)
        fit()
    fit(best=("max", "val/loss"))
    said = capsys.readouterr().out
    assert "resume: best was min val/loss and is now max val/loss; the best weights are chosen from here on" in said


@pytest.mark.parametrize(("split", "named"), [("train", "training"), ("val", "validation"), ("test", "test")])
def test_data_without_a_batch_is_refused(split: str, named: str, fit: Callable) -> None:
    empty = {f"{split}_dataloader": lambda self: DataLoader(rows(3), 6, drop_last=True)}
    with pytest.raises(UserError, match=f"There is not one batch of {named} data"):
        fit(data=type("Empty", (Numbers,), empty))


def test_a_stream_without_a_batch_is_refused_and_trained_on_once_it_has_some(fit: Callable) -> None:
    class Empty(Stream):
        Rows = type("Nothing", (IterableDataset,), {"__iter__": lambda self: iter(())})

    for data, options in ((Empty, {}), (Numbers, {"trainer": {"limit_train_batches": 0}})):
        with pytest.raises(UserError, match="There is not one batch of training data"):
            fit(data=data, max_steps=3, **options)
    assert fit(data=Stream, max_steps=3).global_step == 3


def test_training_that_diverges_ends_in_a_sentence(fit: Callable) -> None:
    """A single loss that is not finite, of a step that a gradient scaler leaves out, does not end it."""

    class Diverging(Line):
        scaled = False

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx) * (float("nan") if batch_idx == 5 else 1)
            return loss.detach().requires_grad_() if self.scaled else loss

    with pytest.raises(UserError, match=r"at step 8 net\.0\.weight has values that are not finite"):
        fit(model=Diverging)
    assert fit(model=type("Scaled", (Diverging,), {"scaled": True}), output_dir="b").global_step == 2 * STEPS


def test_the_best_weights_are_named_by_their_step(fit: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    class Rising(Line):
        def on_validation_epoch_end(self) -> None:
            self.log("val/epoch", float(self.current_epoch))

    fit(model=Rising, best=("min", "val/epoch"))
    assert f"best weights: min val/epoch: 0, after step {STEPS} in epoch 1\n" in capsys.readouterr().out
    fit(model=Rising, best=("max", "val/epoch"), output_dir="b")
    assert f"best weights: max val/epoch: 1, after step {2 * STEPS} in epoch 2\n" in capsys.readouterr().out


def test_a_training_without_end_is_refused(fit: Callable) -> None:
    with pytest.raises(UserError, match="max_epochs and max_steps are both -1; set one of them"):
        fit(trainer={"max_epochs": -1})
    assert fit(trainer={"max_epochs": -1}, max_steps=3).global_step == 3


def test_a_stream_trains_for_max_steps(fit: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no length, so its number of steps is not known; pass --max_steps"):
        fit(data=Stream)
    assert fit(data=Stream, epochs=9, max_steps=STEPS + 3).global_step == STEPS + 3
    fit(data=Stream, epochs=9, max_steps=STEPS + 3, output_dir="b", checkpoint_steps=1, crash=("on_train_batch_end", 3))
    resumed = fit(data=Stream, epochs=9, max_steps=STEPS + 3, output_dir="b", checkpoint_steps=1)
    assert resumed.global_step == STEPS + 3
    assert "its loader begins anew for what is left of epoch 1" in capsys.readouterr().out
    fit(data=Stream, max_steps=3, output_dir="c")
    assert "warning: no validation gave a finite val/loss; the last weights are taken" in capsys.readouterr().err


def test_a_mistake_that_lightning_finds_is_a_sentence(
    fit: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signals, "install", lambda: None)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(train, "train", lambda **_: fit(Manual))
    assert train.main() == 1
    assert "error: Automatic gradient clipping is not supported for manual optimization" in capsys.readouterr().err
    monkeypatch.setattr(train, "train", lambda **_: fit(callbacks=(callbacks.EarlyStopping("val/los"),)))
    assert train.main() == 1
    said = capsys.readouterr()
    assert "error: EarlyStopping waits for val/los, but validation logged val/loss; name one of" in said.err
    assert "step=1 " not in said.out
    monkeypatch.setattr(train, "train", lambda **_: fit(callbacks=(callbacks.EarlyStopping("train/los"),)))
    assert train.main() == 1
    said = capsys.readouterr()
    assert "error: Early stopping conditioned on metric `train/los` which is not available" in said.err
    assert said.err.rstrip().endswith("EarlyStopping(..., strict=False).")


def test_standard_output_that_nobody_reads_ends_in_a_sentence(
    fit: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(signals, "install", lambda: None)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(train, "train", lambda **_: fit())
    with os.fdopen(writer, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert train.main() == 1
    assert capsys.readouterr().err == (
        "error: Nothing reads standard output any more; start the command again with --resume auto.\n"
    )


def test_a_metrics_name_is_no_regular_expression() -> None:
    line = report.format_metrics({"step": 3, "val/mape(%)": 2.5})
    assert re.findall(report.metric_regex("val/mape(%)"), line) == ["2.5"]


def test_a_batch_has_as_many_samples_as_its_first_tensor_has_rows() -> None:
    assert [len(leaf) for leaf in divided.leaves({"name": "a", "x": torch.zeros(3, 2)})] == [1, 3]


def test_mlflow_is_lightnings_own_logger_where_a_server_is_named(monkeypatch):
    assert tracking.mlflow_loggers({}, {}) == []
    made: dict[str, Any] = {}
    signature = inspect.signature(pl.loggers.MLFlowLogger)

    class Logger:
        def __init__(self, experiment: str, **given: Any) -> None:
            signature.bind(experiment, **given)
            made.update(given, experiment=experiment)

        def log_hyperparams(self, options: dict[str, Any]) -> None:
            made["options"] = options

    monkeypatch.setattr(pl.loggers, "MLFlowLogger", Logger)
    env = {"MLFLOW_TRACKING_URI": "arn:x", "MLFLOW_EXPERIMENT_NAME": "words", "TRAINING_JOB_NAME": "words-1"}
    (logger,) = tracking.mlflow_loggers({"lr": 0.1}, env)
    assert isinstance(logger, Logger) and env["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"
    assert made == {"experiment": "words", "run_name": "words-1", "tracking_uri": "arn:x", "options": {"lr": 0.1}}


def test_mlflow_that_is_not_installed_is_a_sentence(monkeypatch):
    def missing(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("mlflow")

    monkeypatch.setattr(pl.loggers, "MLFlowLogger", missing)
    with pytest.raises(UserError, match="not installed; add sagemaker-mlflow to src"):
        tracking.mlflow_loggers({}, {"MLFLOW_TRACKING_URI": "arn:x"})


def test_an_mlflow_server_that_does_not_answer_is_a_sentence_without_its_address(monkeypatch):
    def silent(*_: Any, tracking_uri: str, **__: Any) -> None:
        raise ConnectionError(f"API request to {tracking_uri} failed")

    monkeypatch.setattr(pl.loggers, "MLFlowLogger", silent)
    with pytest.raises(UserError, match="API request to its address failed"):
        tracking.mlflow_loggers({}, {"MLFLOW_TRACKING_URI": "http://me:secret@x"})
