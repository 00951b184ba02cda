"""What changes in training and no ``state_dict`` holds is exact after a resume, or has a line."""

import functools
import threading
from collections import deque
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from pytorch_lightning import callbacks
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from small_training import BATCHES, SIZE, Fit, Line, Numbers, Resumable, assert_same, rows
from smlightning.checkpoints.values import copied, plain, restored

OPTIONS = {"epochs": 3, "checkpoint_steps": 1}
MOMENTS = [("before_batch", 4), ("before_epoch", 2), ("before_batch", 2 * BATCHES + 3)]


class Slots:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Part:
    """State three objects down, of each form."""

    def __init__(self) -> None:
        self.slots = {"inner": (Slots(),)}
        self.count = np.float32(0)
        self.stages = [Slots(), Slots()]
        self.now = self.stages[0]
        self.add = functools.partial(self._add, self)

        calls = 0

        def counted() -> int:
            nonlocal calls
            calls += 1
            return calls

        self.counted = counted

    @staticmethod
    def _add(self: Any, number: float) -> None:
        self.count += np.float32(number)

    def advance(self) -> float:
        self.slots["inner"][0].scale *= 0.9
        self.add(0.1)
        calls = self.counted()
        self.now = self.stages[calls % 2]
        self.now.scale += 0.01 * calls
        return float(self.slots["inner"][0].scale + self.count + self.now.scale)


class Transition(NamedTuple):
    weight: torch.Tensor
    step: int


class Replays(pl.Callback):
    """Mixes earlier weights of a buffer into the weights."""

    def __init__(self) -> None:
        self.part = {"a": [Part()]}
        self.buffer: deque[Any] = deque(maxlen=5)
        self.slow: Any = None

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        weight = module.net[0].weight.data
        self.buffer.append((weight.clone(), trainer.global_step))
        older, step = self.buffer[0]
        weight.lerp_(older, 0.1 + 0.001 * step).mul_(1 + 1e-3 * self.part["a"][0].advance())
        trainer.loggers[-1].seen += 1
        module.net[2].weight.data.mul_(1 + 1e-3 * trainer.loggers[-1].seen)


class Counting(CSVLogger):
    """A logger with a plain attribute."""

    seen = 0

    def __init__(self) -> None:
        super().__init__("logs")


class Deep(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.objects = (Part(), [torch.Generator()])

    def on_fit_start(self) -> None:
        """A resumed run would copy its weights later in training."""
        self.initial = [weight.detach().clone() for weight in self.net.parameters()]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        noise = torch.rand(1, generator=self.objects[1][0])  # type: ignore[index]
        pairs = zip(self.net.parameters(), self.initial, strict=True)
        pull = sum((weight - first).square().sum() for weight, first in pairs)
        return super().training_step(batch, batch_idx) * (self.objects[0].advance() + noise) + pull


@pytest.mark.parametrize("moment", MOMENTS)
def test_state_of_any_form_is_exact(
    moment: tuple[str, int], fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: str, **more: Any) -> None:
        parts = {"callbacks": (Replays(),), "loggers": (Counting(),)}
        fit(Deep, Resumable, output_dir=folder, **parts, **OPTIONS, **more)

    run("alone")
    run("resumed", crash=moment)
    run("resumed")
    assert "inexact" not in capsys.readouterr().out
    assert_same("alone", "resumed", moment)


class Step:
    """A count that decides how rows are read."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x * (1 + 0.01 * self.count)


class Counted(Numbers):
    def setup(self, stage: str) -> None:
        self.transform = [Step()]

    def train_dataloader(self) -> DataLoader:
        def collate(samples: list[Any]) -> Any:
            numbers, x, y = torch.utils.data.default_collate(samples)
            return numbers, self.transform[0](x), y

        return DataLoader(rows(SIZE * BATCHES), SIZE, collate_fn=collate)


class Saving(Counted):
    """It counts the calls of a method, too, which Lightning makes after it restored the state."""

    count, calls = 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.transform[0].count, "calls": self.calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls = state_dict["calls"]
        self.transform[0].count = state_dict["count"]

    def train_dataloader(self) -> DataLoader:
        self.calls += 1
        return super().train_dataloader()


@pytest.mark.parametrize("data", [Counted, Saving])
def test_the_first_checkpoint_prints_what_changed_in_the_data(
    data: Any, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Line, data, crash=("before_batch", 5), **OPTIONS)
    first = capsys.readouterr().out.splitlines()
    fit(Line, data, **OPTIONS)
    lines = [line for line in capsys.readouterr().out.splitlines() if "inexact" in line]
    printed = [number for number, line in enumerate(first) if "inexact" in line]
    if data is Saving:
        assert not printed and not lines
        return
    (number,) = printed
    assert first[number] == (
        "checkpoint: inexact: after a resume, Counted.transform.0.count will start anew; save them "
        "in Counted.state_dict, and set them in Counted.load_state_dict"
    )
    assert "checkpoint: outputs" not in "".join(first[:number])
    assert lines[0] == "resume: inexact: Counted.transform.0.count cannot be restored"


def noting() -> Any:
    """A function that holds an object in its closure."""
    latest: Any = Slots()

    def note() -> None:
        nonlocal latest
        latest = Step()

    return note


class Opaque(Line):
    """Replaces and makes objects in training."""

    kinds: ClassVar = (Slots, Step)

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.items: list[Any] = []
        self.strategy: Any = Slots()
        self.lock: Any = None
        self.rows = iter(range(100))
        self.loss_of: Any = torch.nn.functional.mse_loss
        self.note = noting()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.items.append(Slots())
        self.strategy = Step()
        self.lock = self.lock or threading.Lock()
        self.loss_of = torch.nn.functional.l1_loss
        next(self.rows)
        self.note()
        return super().training_step(batch, batch_idx)


def test_objects_that_training_makes_are_printed_once(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Opaque, Resumable, **OPTIONS)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "inexact" in line]
    names = ", ".join(
        f"Opaque.{name}" for name in ("items", "loss_of", "note.latest", "rows", "strategy")
    )
    assert line.startswith(f"checkpoint: inexact: after a resume, {names} will start anew; give")


class Measured(Line):
    """Metrics of torchmetrics in several forms, and the cache of an attention."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.several = torchmetrics.MetricCollection(
            {"a": torchmetrics.MeanSquaredError(), "b": torchmetrics.MeanAbsoluteError()}
        )
        self.kept = {"mean": torchmetrics.MeanMetric()}
        self.seen = torchmetrics.CatMetric()
        self.cache: Any = None
        self.recompute = functools.partial(checkpoint, use_reentrant=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = self.several(self.recompute(self.net, batch[1]), batch[2])
        self.cache = {"keys": (found["a"],)}
        self.kept["mean"].update(found["a"])
        self.seen.update(found["b"])
        self.log("train/mean", found["a"], on_epoch=True)
        self.log_dict(self.several, on_epoch=True, on_step=False)
        return super().training_step(batch, batch_idx)


def libraries() -> tuple[Any, ...]:
    return (
        callbacks.EarlyStopping("val/loss", patience=9),
        callbacks.ModelCheckpoint("kept", monitor="val/loss"),
        callbacks.LearningRateMonitor("step", log_momentum=True),
        callbacks.EMAWeightAveraging(),
        callbacks.RichProgressBar(),
        callbacks.Timer(),
        callbacks.DeviceStatsMonitor(cpu_stats=True),
        callbacks.ModelSummary(),
        callbacks.LambdaCallback(on_train_start=lambda *_: None),
    )


def test_popular_libraries_print_no_line(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    def run(**more: Any) -> None:
        loggers = (CSVLogger("logs"), TensorBoardLogger("logs"))
        trainer = {"enable_progress_bar": True, "log_every_n_steps": 1}
        options = {"callbacks": libraries(), "loggers": loggers, "trainer": trainer}
        fit(Measured, Resumable, **options, **OPTIONS, **more)

    run(crash=("before_batch", BATCHES + 4))
    run(crash=("before_batch", 5))
    run()
    assert "inexact" not in capsys.readouterr().out


def test_values_return_as_they_were() -> None:
    for value in (
        np.float32(0.1),
        np.arange(6).reshape(2, 3)[:, ::-1],
        {"a": frozenset([(1, 2)]), "b": {3, 1}},
        Transition(torch.ones(2), 3),
    ):
        saved = plain(value, copied)
        found = restored(saved, value, torch.device("cpu"))
        assert type(found) is type(value) and str(found) == str(value)
