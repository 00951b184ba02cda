"""A model and data of seconds, and `fit`: train.py with these in place of the example's."""

import csv
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import train
from options import Options
from smlightning.checkpoints import files
from smlightning.checkpoints.callback import Checkpoints
from smlightning.data.batches import GlobalBatches
from smlightning.reports import curves

OF_THE_MACHINE = ("samples_per_second", "data_wait", "host_gib", "gpu_gib")
BATCHES = 8  # of an epoch, of SIZE rows each
SIZE = 6


class Crash(Exception):
    """Ends a run in these tests."""


def rows(count: int) -> TensorDataset:
    """Points of a line: number, x, y."""
    x = torch.linspace(-1, 1, count)[:, None]
    return TensorDataset(torch.arange(count), x, 3 * x + 1)


class Numbers(pl.LightningDataModule):
    """Points of a line in ordinary loaders; knows nothing of this project's batches."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    def train_dataloader(self) -> DataLoader:
        return DataLoader(rows(SIZE * BATCHES), SIZE, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(rows(10), 5)

    test_dataloader = val_dataloader


class Stream(Numbers):
    """The same points without a length."""

    class Rows(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            yield from rows(SIZE * BATCHES)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.Rows(), SIZE)


class Jittered(Dataset):
    """Whole batches of numbered points.

    A point is moved a little whenever it is fetched, by each of the generators that people draw
    from.
    """

    def __init__(self, points: TensorDataset, jitter: float = 0.1) -> None:
        self.points, self.jitter = points, jitter

    def __getitem__(self, index: Any) -> Any:
        chosen = index[0] if isinstance(index, tuple) else index  # as GlobalBatches gives it
        number, x, y = self.points[np.asarray(chosen, dtype=np.int64)]
        noise = torch.rand(1) + np.random.rand() + random.random()
        return number, x + self.jitter * noise.float(), y

    def __len__(self) -> int:
        return len(self.points)


class Resumable(Numbers):
    """Shuffled: `GlobalBatches` as the example's data has them."""

    workers = 0
    jitter = 0.1
    fingerprint = "points"

    def train_dataloader(self) -> DataLoader:
        trainer: Any = self.trainer
        accumulate = trainer.accumulate_grad_batches
        sampler = GlobalBatches(
            np.arange(SIZE * BATCHES) % 7,
            SIZE * accumulate,
            trainer.global_rank,
            trainer.world_size,
            seed=3,
            accumulate=accumulate,
        )
        points = Jittered(rows(SIZE * BATCHES), self.jitter)
        return DataLoader(points, sampler=sampler, batch_size=None, num_workers=self.workers)


class InOrder(Numbers):
    """Not shuffled, by a sampler that knows nothing of this project's."""

    class Batches(torch.utils.data.Sampler):
        def __len__(self) -> int:
            return BATCHES

        def __iter__(self) -> Iterator[list[int]]:
            for batch in range(BATCHES):
                yield list(range(SIZE * batch, SIZE * (batch + 1)))

    def train_dataloader(self) -> DataLoader:
        points = Jittered(rows(SIZE * BATCHES))
        return DataLoader(points, sampler=self.Batches(), batch_size=None)


class Notes(list):
    """A list that no checkpoint holds, for what one process did."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


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
        self.trained: list[list[int]] = Notes()  # rows of each batch
        self.evaluated: list[tuple[str, float]] = (
            Notes()
        )  # what validation and test saw of the weights

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
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def save(self, directory: Path) -> None:
        torch.save(self.net.state_dict(), directory / "line.pt")


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


class Plateau(Line):
    """A schedule that is updated after the epoch's last hook."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val/loss"},
        }


Fit = Callable[..., pl.Trainer]


def fit(monkeypatch: pytest.MonkeyPatch) -> Fit:
    """`train.train` with another model and data, and other arguments of the Trainer; returns the
    Trainer.

    ``crash=(hook, n)`` ends the run when `Checkpoints` has done its ``hook`` for the n-th time.
    """
    monkeypatch.setattr(curves, "save_figure", lambda figure, path: curves.pyplot().close(figure))
    start = train.train

    def run(
        model: type = Line,
        data: type = Numbers,
        best: tuple[str, str] = ("min", "val/loss"),
        callbacks: tuple = (),
        loggers: tuple = (),
        trainer: dict | None = None,
        crash: tuple[str, int] | None = None,
        **options: Any,
    ) -> pl.Trainer:
        trainers: list[pl.Trainer] = []

        class Edited(pl.Trainer):
            def __init__(self, **given: Any) -> None:
                given["callbacks"] = [*given["callbacks"], *callbacks]
                given["logger"] = [*given["logger"], *loggers]
                super().__init__(**{**given, **(trainer or {})})
                trainers.append(self)

        with monkeypatch.context() as patch:
            patch.setattr(pl, "Trainer", Edited)
            patch.setattr("data.Data", data)
            patch.setattr("model.Model", model)
            patch.setattr(train, "MODE", best[0])
            patch.setattr(train, "MONITOR", best[1])
            options = {"epochs": 2, "log_every": 4, **options}
            if crash:
                crash_after(patch, *crash)
                with pytest.raises(Crash):
                    start(Options(**options))
            else:
                start(Options(**options))
        return trainers[0]

    return run


Alone = Callable[..., tuple[str, int]]


def alone(folder: Path) -> Alone:
    """Runs each uninterrupted training once in ``folder``; returns its output and its steps."""
    known: dict[str, tuple[str, int]] = {}

    def run(*args: Any, **options: Any) -> tuple[str, int]:
        key = repr((args, options))
        if key not in known:
            output = str(folder / str(len(known)))
            with pytest.MonkeyPatch.context() as patch:
                trainer = fit(patch)(*args, **options, output_dir=output)
            known[key] = output, trainer.global_step
        return known[key]

    return run


def crash_after(patch: pytest.MonkeyPatch, hook: str, times: int) -> None:
    """End the run when `Checkpoints` has done a hook so often, and its checkpoint is written.

    ``before_batch`` and others of these names are called by `BeforeHooks`, and take checkpoints.
    """
    original = getattr(Checkpoints, hook)
    calls: list[None] = []

    def crashing(self: Checkpoints, *args: Any, **options: Any) -> None:
        calls.append(None)
        original(self, *args, **options)
        self.writer.finish()  # a checkpoint that comes while another is being written is left out
        if len(calls) == times:
            raise Crash

    patch.setattr(Checkpoints, hook, crashing)


def directory(output: str = "outputs") -> Path:
    return Path(output, "checkpoints")


def newest_state(output: str = "outputs") -> dict[str, Any]:
    """The content of the newest checkpoint, with the best weights."""
    path = files.newest_path(directory(output))
    assert path
    return files.read(path)


def saved_weights(output: str = "outputs") -> dict[str, torch.Tensor]:
    """The weights that `Line.save` wrote."""
    return torch.load(Path(output, "model/line.pt"), weights_only=True)


def curve_rows(output: str = "outputs") -> list[dict[str, str]]:
    """Rows of the curves, without empty cells and without the columns that are never the same."""
    with Path(output, "curves.csv").open(newline="") as file:
        return [
            {name: text for name, text in row.items() if text and name not in OF_THE_MACHINE}
            for row in csv.DictReader(file)
        ]


def same(one: Any, other: Any) -> bool:
    """Whether two states have the same structure and every bit of it."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def assert_same(alone: str, resumed: str, case: Any) -> None:
    """Weights, optimizer, schedule, best weights, position and curves."""
    whole, again = newest_state(alone), newest_state(resumed)
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "position", "best_weights")
    for part in parts:
        assert same(whole[part], again[part]), (part, case)
    mine, theirs = (state["callbacks"]["Checkpoints"]["best"] for state in (whole, again))
    assert mine == theirs, case
    assert same(saved_weights(alone), saved_weights(resumed)), case
    assert curve_rows(alone) == curve_rows(resumed), case
