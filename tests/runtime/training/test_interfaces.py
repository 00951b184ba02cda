"""What models, callbacks and libraries ask of the Trainer's loggers, folders and metrics: an
answer, or a sentence.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks, profilers
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import Logger
from transformers.optimization import Adafactor

from small_training import BATCHES, Fit, Line, curve_rows
from smlightning.errors import UserError, as_user_error


class Asking(Line):
    """Uses the first logger as TensorBoard's users do, and logs numbers of every kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 4})

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        logger: Any = self.logger
        numbers = {"own/bool": np.bool_(True), "own/array": np.array(2.5), "own/none": None}
        logger.log_metrics({**numbers, "own/pair": {"a": 1.0, "b": 2.0}}, self.global_step)
        self.log_dict({"val/float32": np.float32(0.5), "val/int": np.int64(3), "val/flag": True})

    def on_train_end(self) -> None:
        logger: Any = self.logger
        logger.log_hyperparams({"width": 8}, {"hp/score": 1.0})
        logger.log_graph(self)
        for each in self.loggers:
            each.experiment.add_text("a", "b")  # type: ignore[attr-defined]
        assert isinstance(logger, TensorBoardLogger)
        assert (logger.name, logger.version) == ("tensorboard", "")
        assert Path(self.trainer.log_dir or "") == Path(logger.save_dir, "tensorboard")


def test_the_first_logger_is_tensorboards_and_prints_numbers_of_every_kind(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Asking, output_dir="o")
    out = capsys.readouterr().out
    assert re.search(r"^step=9 .* own/bool=1 own/array=2.5$", out, re.M)
    assert re.search(r"val/float32=0.5 val/int=3 val/flag=1", out)
    assert "hp_metric" not in out and "own/none" not in out
    assert {"val/int", "own/array"} <= set().union(*curve_rows("o"))
    assert Path("o/tensorboard/hparams.yaml").read_text() == "width: 4\n"
    assert [path.name for path in Path("o/tensorboard").iterdir() if path.is_dir()]  # own/pair


def simple() -> Any:
    return profilers.SimpleProfiler(filename="times")


@pytest.mark.parametrize(
    ("profiler", "file"),
    [(simple, "fit-times.txt"), (lambda: "pytorch", "*.pt.trace.json"), (lambda: "advanced", "")],
)
def test_files_without_a_folder_lie_below_the_outputs(
    profiler: Any, file: str, fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []

    class Noting(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            Path(trainer.default_root_dir, "mine.txt").write_text("")
            found.append(trainer.log_dir)

    saver = callbacks.ModelCheckpoint(save_last=True)
    error = callbacks.OnExceptionCheckpoint
    fit(
        callbacks=(saver, Noting(), error("o/failed")),
        trainer={"profiler": profiler()},
        output_dir=str(tmp_path / "o"),
        max_steps=6,
    )
    outside = [path for path in tmp_path.iterdir() if path.name != "o"]
    assert not outside and [*map(Path, found)] == [tmp_path / "o/tensorboard"]
    assert not file or [*tmp_path.glob(f"o/tensorboard/{file}")]
    assert [*tmp_path.glob("o/tensorboard/checkpoints/last.ckpt")] and (tmp_path / "o/mine.txt")


def test_an_own_logger_may_come_first(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    class First(Line):
        def on_train_end(self) -> None:
            logger: Any = self.logger
            logger.experiment.log_metrics({"mine": 1.0}, 3)

    own = CSVLogger("o", "table", "")
    edited: Any = {}
    original = pl.Trainer.__init__

    def reorder(self: Any, *args: Any, **given: Any) -> None:
        given["logger"] = [own, *given["logger"]]
        edited.update(given)
        original(self, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl.Trainer, "__init__", reorder)
        trainer = fit(First, output_dir="o")
    assert trainer.logger is own and "mine" in Path("o/table/metrics.csv").read_text()
    assert "train/loss=" in capsys.readouterr().out and Path("o/tensorboard").is_dir()


def sentence(fit: Fit, *args: Any, **options: Any) -> str:
    with pytest.raises(Exception) as raised:
        fit(*args, **options)
    error = as_user_error(raised.value)
    assert error, raised.value
    return str(error)


class Images(Line):
    def on_validation_epoch_end(self) -> None:
        self.logger.log_image("a", [])  # type: ignore[union-attr]


class Logs(Line):
    def on_validation_epoch_end(self) -> None:
        self.logger.experiment.log({"a": 1})  # type: ignore[union-attr]


@pytest.mark.parametrize(("model", "name"), [(Images, "log_image"), (Logs, "log")])
def test_a_method_of_another_logger_is_one_sentence(model: Any, name: str, fit: Fit) -> None:
    text = sentence(fit, model)
    assert f"has no attribute '{name}'" in text and "logger=[YourLogger(...), *run.lo" in text
    assert "test_interfaces.py:" in text


class Uploads(CSVLogger):
    """As WandbLogger(log_model=True)."""

    def __init__(self, log_model: Any) -> None:
        super().__init__("o/table")
        self._log_model, self.got = log_model, []

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self.got.append(checkpoint_callback.best_model_path)


class Silent(Uploads):
    """Its class alone shows that it waits for files."""

    def __init__(self) -> None:
        super().__init__(False)
        del self._log_model


def test_a_logger_gets_the_weights_of_a_model_checkpoint_or_a_sentence(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"output_dir": "o", "epochs": 1}
    assert "Uploads(log_model=...) gets the weights that a ModelCheckpoint saves" in sentence(
        fit, loggers=(Uploads("all"),), **options
    )
    fit(loggers=(Uploads(False),), **options)
    assert "after_save_checkpoint" not in capsys.readouterr().err
    fit(loggers=(Silent(),), **options)
    assert "warning: Silent.after_save_checkpoint gets the weights" in capsys.readouterr().err
    uploads = Uploads("all")
    saver = callbacks.ModelCheckpoint(monitor="val/loss")
    fit(loggers=(uploads,), callbacks=(saver,), **options)
    assert uploads.got and Path(uploads.got[0]).is_file()


class Plateau(Line):
    monitor = "train/loss"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        each = {"scheduler": schedule, "monitor": self.monitor}
        return {"optimizer": optimizer, "lr_scheduler": each}


def test_a_schedule_and_a_stop_watch_what_the_log_prints(fit: Fit) -> None:
    trainer = fit(Plateau, epochs=4)
    rates = [float(row["lr"]) for row in curve_rows() if "lr" in row]
    assert rates[0] == 0.05 and rates[-1] < 0.01  # no epoch is ten times as good
    logged = [float(row["train/loss"]) for row in curve_rows() if "train/loss" in row]
    schedule: Any = trainer.lr_scheduler_configs[0].scheduler
    assert schedule.best in logged
    stop = callbacks.EarlyStopping("lr", stopping_threshold=0.02, strict=True)
    stopped = fit(Plateau, epochs=4, callbacks=(stop,), output_dir="stopped")
    assert stopped.current_epoch < 4


class Own(Plateau):
    """Logs a mean of its own by the log's name."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/loss", 7.0, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


class Speed(Plateau):
    monitor = "samples_per_second"


def test_the_models_own_metric_is_watched_before_the_logs(fit: Fit) -> None:
    schedule: Any = fit(Own).lr_scheduler_configs[0].scheduler
    assert schedule.best == 7.0


@pytest.mark.parametrize(
    ("model", "watching"),
    [(Line, callbacks.EarlyStopping("data_wait")), (Speed, callbacks.ModelSummary())],
)
def test_watching_a_number_of_the_machine_is_rejected(model: Any, watching: Any, fit: Fit) -> None:
    assert "which is another number on each rank" in sentence(fit, model, callbacks=(watching,))


def test_watching_a_metric_that_is_missing_is_one_sentence(fit: Fit) -> None:
    stop = callbacks.EarlyStopping("val/los")
    assert "conditioned on metric `val/los`" in sentence(fit, callbacks=(stop,))


class Adaptive(Line):
    def configure_optimizers(self) -> Any:
        return Adafactor(self.parameters(), lr=None)


def test_a_group_without_a_rate_trains_and_has_none_to_monitor(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning's monitor fails at the None in Adafactor's group."""
    trainer = fit(Adaptive, callbacks=(callbacks.DeviceStatsMonitor(cpu_stats=True),))
    assert trainer.global_step == 2 * BATCHES
    out = capsys.readouterr().out
    assert "train/loss=" in out and " lr" not in out.partition("steps=")[2]
    rates = (callbacks.LearningRateMonitor("step"),)
    assert "Adafactor has no learning rate" in sentence(fit, Adaptive, callbacks=rates)


class Elsewhere(Logger):
    name, version, save_dir = "x", 0, "s3://bucket/x"

    def log_metrics(self, *_: Any, **__: Any) -> None:
        pass

    log_hyperparams = log_metrics


def test_a_job_warns_of_folders_that_are_lost(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> list[str]:
        kept = callbacks.ModelCheckpoint(tmp_path / "checkpoints/own", monitor="step", mode="max")
        lost = callbacks.ModelCheckpoint("lost")
        loggers = (CSVLogger("logs"), CSVLogger(tmp_path / "out/logs"), Elsewhere())
        fit(callbacks=(kept, lost), loggers=loggers, max_steps=2)
        lines = capsys.readouterr().err.splitlines()
        return [line for line in lines if "lost when the job ends" in line]

    monkeypatch.delenv("SM_MODEL_DIR", raising=False)
    assert not run()
    monkeypatch.setenv("SM_MODEL_DIR", str(tmp_path / "model"))
    monkeypatch.setenv("SM_OUTPUT_DATA_DIR", str(tmp_path / "out"))
    first, second = run()
    assert first.startswith(f"warning: CSVLogger writes to {Path('logs').resolve()}, which is")
    assert second.startswith(f"warning: ModelCheckpoint writes to {Path('lost').resolve()}, wh")


def test_a_user_error_of_ones_own_logger_is_not_hidden(fit: Fit) -> None:
    class Broken(Logger):
        name, version = "x", 0

        def log_metrics(self, *_: Any, **__: Any) -> None:
            self.missing()

        log_hyperparams = log_metrics

    with pytest.raises(AttributeError) as raised:
        fit(loggers=(Broken(),))
    assert not isinstance(as_user_error(raised.value), UserError)
