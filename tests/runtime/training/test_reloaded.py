"""Loaders that are made anew within a run, read by a hook, or have a wrong length."""

import time
from typing import Any

import pytest
import pytorch_lightning as pl
from torch.utils.data import DataLoader, IterableDataset, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

import loader_runs
from loader_runs import SIZE, Augmented
from small_training import Fit, Numbers, newest_state, same
from smlightning.checkpoints.callback import Checkpoints
from smlightning.data.exact import ExactBatches, Part
from smlightning.errors import UserError

MOMENTS = [("before_batch", 4), ("before_epoch", 2), ("before_batch", 12), ("before_epoch", 3)]


class ByEpoch(Numbers):
    """Other rows, and other many, in each epoch in which the loader is made."""

    def train_dataloader(self) -> Any:
        first = self.trainer.current_epoch
        rows = Subset(Augmented(), range(first, loader_runs.ROWS - SIZE * first))
        return DataLoader(rows, SIZE, shuffle=True)


class Counting(Numbers):
    """Counts the calls of its method."""

    calls = 0

    def train_dataloader(self) -> Any:
        self.calls += 1
        return DataLoader(Augmented(), SIZE, shuffle=True)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls = state_dict["calls"]


class WithoutLength(Numbers):
    """A stream with a state, of which Lightning fetches a batch ahead."""

    def train_dataloader(self) -> Any:
        return StatefulDataLoader(
            loader_runs.of_datasets(False), SIZE, collate_fn=loader_runs.points_of
        )


class Read(pl.Callback):
    """Reads the training loader in a hook, as for statistics."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def _read(self, trainer: pl.Trainer) -> None:
        for _, _ in zip(range(self.batches), trainer.train_dataloader, strict=False):  # type: ignore[call-overload]
            pass

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._read(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._read(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **options: Any) -> None:
        if trainer.global_step % 3 == 0:
            self._read(trainer)


class Plain(Numbers):
    def train_dataloader(self) -> Any:
        return DataLoader(Augmented(), SIZE, shuffle=True)


@pytest.mark.parametrize(
    ("data", "every", "options"),
    [
        (ByEpoch, 1, {}),
        (ByEpoch, 2, {}),
        (Counting, 0, {}),
        (Counting, 1, {}),
        (Counting, 2, {}),
        (WithoutLength, 1, {"max_steps": 24}),
        (WithoutLength, 0, {"max_steps": 24}),
    ],
)
def test_a_run_with_loaders_that_are_made_anew_resumes_exactly(
    data: type, every: int, options: Any, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"epochs": 4, "checkpoint_steps": 1, **options}
    options["trainer"] = {"reload_dataloaders_every_n_epochs": every}
    fit(loader_runs.Model, data, output_dir="alone", **options)
    for number, crash in enumerate(MOMENTS):
        fit(loader_runs.Model, data, output_dir=str(number), crash=crash, **options)
        fit(loader_runs.Model, data, output_dir=str(number), **options)
        alone, resumed = (newest_state(folder) for folder in ("alone", str(number)))
        assert same(alone["state_dict"], resumed["state_dict"]), crash
        assert alone.get(data.__qualname__) == resumed.get(data.__qualname__), crash
    out = capsys.readouterr().out
    assert "another order" not in out and "inexact" not in out


POINTS = Augmented()


class Lasting(ByEpoch):
    """The same rows in each epoch, of a data set that lasts."""

    def train_dataloader(self) -> Any:
        return DataLoader(POINTS, SIZE, shuffle=True)


class Subsets(ByEpoch):
    def train_dataloader(self) -> Any:
        return DataLoader(Subset(POINTS, range(loader_runs.ROWS)), SIZE, shuffle=True)


class Holding(loader_runs.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.points = POINTS


class Scaled(pl.Callback):
    """Changes the data of the loader that is in use: once in the epoch before the last."""

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **options: Any) -> None:
        if trainer.current_epoch == 1:
            data: Any = trainer.train_dataloader
            while hasattr(data, "dataset"):
                data = data.dataset
            data.scale = 2


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize(
    ("model", "data"),
    [(loader_runs.Model, Lasting), (loader_runs.Model, Subsets), (Holding, Lasting)],
)
def test_a_change_of_data_that_outlasts_its_loader_is_printed(
    model: type, data: type, every: int, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if no checkpoint and no validation comes before the next loader."""
    POINTS.__dict__.clear()
    reload = {"reload_dataloaders_every_n_epochs": every, "check_val_every_n_epoch": 3}
    options: Any = {"epochs": 3, "checkpoint_steps": 0, "trainer": reload}
    fit(model, data, callbacks=(Scaled(),), **options)
    assert "inexact: after a resume, data set 0" in capsys.readouterr().out


class Written(pl.Callback):
    """Waits for each checkpoint: while one is written, as to a slow disk, others are left out."""

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **options: Any) -> None:
        (checkpoints,) = (each for each in trainer.callbacks if isinstance(each, Checkpoints))  # type: ignore[attr-defined]
        while checkpoints.writer.busy():
            time.sleep(0.01)


def test_a_change_of_data_that_is_made_anew_is_printed(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within the epoch whose checkpoints lack it."""
    reload = {"reload_dataloaders_every_n_epochs": 1}
    options: Any = {"epochs": 3, "checkpoint_steps": 1, "trainer": reload}
    fit(loader_runs.Model, ByEpoch, callbacks=(Scaled(), Written()), **options)
    assert "inexact: after a resume, data set 0.dataset will" in capsys.readouterr().out


@pytest.mark.parametrize("batches", [1, 100])
def test_a_hook_that_reads_the_training_loader_changes_nothing(
    batches: int, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"epochs": 3, "checkpoint_steps": 1, "model": loader_runs.Model, "data": Plain}
    fit(output_dir="alone", **options)
    options["callbacks"] = (Read(batches),)
    fit(output_dir="read", **options)
    fit(output_dir="resumed", crash=("before_batch", 12), **options)
    fit(output_dir="resumed", **options)
    alone, *others = (newest_state(each)["state_dict"] for each in ("alone", "read", "resumed"))
    assert all(same(alone, other) for other in others)
    assert "inexact" not in capsys.readouterr().out


def test_a_hook_that_reads_a_stream_is_named(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    class Rows(IterableDataset):
        def __iter__(self) -> Any:
            yield from (loader_runs.point(row, 0.0) for row in range(loader_runs.ROWS))

    class Stream(Numbers):
        def train_dataloader(self) -> Any:
            return DataLoader(Rows(), SIZE)

    fit(loader_runs.Model, Stream, max_steps=8, callbacks=(Read(4),))
    assert "inexact: a hook iterates trainer.train_dataloader" in capsys.readouterr().out


def test_a_length_beyond_the_rows_is_an_error_after_the_first_epoch(fit: Fit) -> None:
    class Half(IterableDataset):
        def __len__(self) -> int:
            return loader_runs.ROWS

        def __iter__(self) -> Any:
            yield from (loader_runs.point(row, 0.0) for row in range(0, loader_runs.ROWS, 2))

    class Halved(Numbers):
        def train_dataloader(self) -> Any:
            return DataLoader(Half(), SIZE)

    with pytest.raises(UserError) as raised:
        fit(loader_runs.Model, Halved, epochs=3)
    assert "is 8 batches, and it ended after 4" in raised.value.problem
    assert "__len__" in raised.value.hint


def test_a_restart_of_a_shorter_loader_has_other_random_numbers() -> None:
    """Lightning fetches its first batch before it has counted the last one."""
    sampler = ExactBatches(range(12), Part(size=4), 12, seed=1)
    turns = []
    for done in (0, 2, 3, 5, 6):
        sampler.start = lambda done=done: (0, done)
        turns.append(next(iter(sampler)).moment.turn)
    assert turns == [0, 1, 1, 2, 2]
