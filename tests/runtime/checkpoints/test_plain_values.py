"""What torch, numpy and Python put into states and groups is stored, and restored as it was."""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntFlag
from pathlib import Path, PureWindowsPath
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from torch.optim import lr_scheduler
from transformers.optimization import Adafactor

from small_training import BATCHES, Fit, Line, Numbers, Resumable, assert_same
from smlightning.checkpoints import files, values
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.errors import UserError

OPTIONS = {"epochs": 3, "checkpoint_steps": 1}


class Phase(Enum):
    WARMUP = 0.1
    MAIN = 1.0


class Flag(IntFlag):
    ON = 1


class Pair(NamedTuple):
    weight: torch.Tensor
    step: int


VALUES: tuple[Any, ...] = (
    np.float64(0.1), np.float32(0.1), np.int64(-3), np.uint8(255), np.bool_(True), np.complex64(1j),
    np.array(0.5), np.array([]), np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
    torch.tensor(0.1), torch.tensor(3, dtype=torch.int8), torch.bfloat16, torch.Size([2]),
    Phase.MAIN, Flag.ON, {Phase.MAIN: 1}, {(1, "a"): [2]}, {np.int64(3): np.float32(1)},
    date(2026, 2, 28), datetime(2026, 2, 28, 1, 2, 3, 4), datetime(2026, 2, 28, tzinfo=UTC),
    timedelta(days=-1, microseconds=5), Decimal("0.10"), Path("a/b"), PureWindowsPath("a"),
    {1, "x"}, {(1, 2)}, frozenset([Phase.MAIN]), range(3, 0, -1), slice(None, 3),
    OrderedDict(b=1, a=np.float64(2)), Counter("aab"), deque([1, np.int64(2)], maxlen=3),
    defaultdict(int, a=1), defaultdict(None, a=np.float64(1)), {"deep": [{"x": (Phase.WARMUP,)}]},
)  # fmt: skip


class Noted(torch.Tensor):
    """A library's tensor with an attribute, as MONAI's MetaTensor; operations keep the class."""

    note: Any = None


def test_a_tensor_of_a_librarys_class_is_read_as_torchs(tmp_path: Path) -> None:
    """Such a tensor is logged as a loss, and torch.load would reject the whole checkpoint."""
    loss = torch.tensor([0.5, 2.0]).as_subclass(Noted)
    loss.note = Phase.MAIN
    writer = CheckpointWriter(tmp_path)
    writer.hold({"callbacks": {"Own": {"x": [loss]}}}, Position(step=1))
    writer.write()
    writer.finish()
    (read,) = files.read(files.numbered(tmp_path)[0][1])["callbacks"]["Own"]["x"]
    assert type(read) is torch.Tensor and read.tolist() == [0.5, 2.0]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_read_as_it_was(value: Any, tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.hold({"callbacks": {"Own": {"x": value}}}, Position(step=1))
    writer.write()
    writer.finish()
    found = files.read(files.numbered(tmp_path)[0][1])["callbacks"]["Own"]["x"]
    is_path = isinstance(value, PureWindowsPath)
    assert str(found) == str(value) and (is_path or type(found) is type(value))
    if isinstance(value, np.ndarray | np.generic):
        assert found.dtype == value.dtype and np.array_equal(found, value)
    elif isinstance(value, defaultdict | deque):
        names = ("default_factory", "maxlen")
        assert [getattr(found, n, 0) for n in names] == [getattr(value, n, 0) for n in names]


def test_tensors_and_generators_within_other_collections_are_restored(tmp_path: Path) -> None:
    pair, ours = Pair(torch.arange(3.0), 2), [Random(3), np.random.default_rng(4)]
    theirs = torch.Generator().manual_seed(5)
    writer = CheckpointWriter(tmp_path)
    state = {"x": deque([pair]), "generators": [*ours, theirs, np.random.RandomState(6)]}
    writer.hold(state, Position(step=1))
    expected = [ours[0].random(), ours[1].random(), torch.rand(1, generator=theirs).item()]
    pair.weight.zero_()  # training goes on
    writer.write()
    writer.finish()
    read = files.read(files.numbered(tmp_path)[0][1])
    assert type(read["x"][0]) is Pair and read["x"][0].weight.tolist() == [0, 1, 2]
    first, second, third, _ = read["generators"]
    assert [first.random(), second.random(), torch.rand(1, generator=third).item()] == expected


def test_reading_imports_nothing_and_makes_no_object_of_another_class() -> None:
    module = "this"
    assert module not in sys.modules
    for kind, value in (
        ("member", [module, "Zen", "x"]),
        ("member", ["string", "Template", "x"]),
        ("NamedTuple", ["string", "Template", ["x"]]),
        ("NamedTuple", [__name__, "Pair", [1]]),
        ("defaultdict", ["Template", {}]),
        ("numpy generator", {"bit_generator": "ones", "state": {}}),
    ):
        with pytest.raises((values.OtherError, KeyError, TypeError, AttributeError)):
            values.decoded({"x": {values.KIND: kind, "value": value}})
    assert module not in sys.modules


def rates(kind: Any) -> Any:
    """A schedule of the class, whose factor numpy computes."""
    return lambda optimizer: kind(optimizer, lambda step: 0.5 + 0.5 * np.cos(step / 20))


class Tabled(lr_scheduler.LRScheduler):
    """Keeps an array, a function and a member in its state, which is all of its attributes."""

    def __init__(self, optimizer: Any) -> None:
        self.table = np.linspace(1, 0.1, 50, dtype=np.float32)
        self.shape, self.phase = lambda x: x * x, Phase.WARMUP
        super().__init__(optimizer)

    def get_lr(self) -> Any:
        self.phase = Phase.MAIN if self.last_epoch > 4 else Phase.WARMUP
        factor = self.shape(self.table[self.last_epoch]) * self.phase.value
        return [rate * factor for rate in self.base_lrs]


def nested(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=5), rates(lr_scheduler.LambdaLR)]
    second = lr_scheduler.SequentialLR(optimizer, [parts[0], parts[1](optimizer)], [7])
    return lr_scheduler.ChainedScheduler([second, lr_scheduler.MultiStepLR(optimizer, [9, 9])])


def plain_adam(weights: Any, lr: Any = 0.05) -> Any:
    return torch.optim.Adam(weights, lr)


def named(weights: Any) -> Any:
    groups = [{"params": [weight], "name": f"w{n}"} for n, weight in enumerate(weights)]
    return torch.optim.SGD([{**each, "date": date(2026, 1, 2)} for each in groups], np.float32(0.1))


def adafactor(weights: Any) -> Any:
    return Adafactor(weights, lr=None, scale_parameter=True, relative_step=True, warmup_init=True)


def tensor_rate(weights: Any) -> Any:
    return plain_adam(weights, torch.tensor(0.05))


SCHEDULED: dict[str, tuple[Any, Any]] = {
    "LambdaLR": (plain_adam, rates(lr_scheduler.LambdaLR)),
    "MultiplicativeLR": (plain_adam, rates(lr_scheduler.MultiplicativeLR)),
    "nested": (plain_adam, nested),
    "array": (plain_adam, Tabled),
    "tensor": (tensor_rate, rates(lr_scheduler.LambdaLR)),
    "groups with names": (named, lambda o: lr_scheduler.CyclicLR(o, 0.01, np.float64(0.1), 5)),
    "Adafactor": (adafactor, None),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules_and_groups_are_exact_after_a_resume(
    name: str, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    make, schedule = SCHEDULED[name]

    class Scheduled(Line):
        def configure_optimizers(self) -> Any:
            optimizer = make([*self.parameters()])
            if not schedule:
                return optimizer
            each = {"scheduler": schedule(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": each}

    fit(Scheduled, Resumable, output_dir="alone", **OPTIONS)
    fit(Scheduled, Resumable, output_dir="parts", crash=("before_batch", BATCHES + 3), **OPTIONS)
    trainer = fit(Scheduled, Resumable, output_dir="parts", **OPTIONS)
    assert_same("alone", "parts", name)
    lines = {line for line in capsys.readouterr().out.splitlines() if "inexact" in line}
    expected = "lr_schedulers.0.shape (function) will start anew"  # a resumed run makes it itself
    assert len(lines) == (name == "array") and all(expected in line for line in lines)
    rows = Path("parts/curves.csv").read_text().splitlines()
    assert ("lr" in rows[0].split(",")) == (name != "Adafactor")
    if name == "tensor":
        assert isinstance(trainer.optimizers[0].param_groups[0]["lr"], torch.Tensor)
        at = rows[0].split(",").index("lr")
        assert float(rows[1].split(",")[at]) == pytest.approx(0.05 * (0.5 + 0.5 * np.cos(3 / 20)))


class Measured(Line):
    """Has objects for hyperparameters, as models of chemprop and pytorch-forecasting have."""

    def __init__(self, metrics: Any = None, **options: Any) -> None:
        super().__init__()
        metrics = metrics or [torchmetrics.MeanSquaredError()]
        self.save_hyperparameters({"metrics": metrics, "normalizer": Phase, "width": np.int64(4)})


class Normalizing(Numbers):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters({"transform": lambda x: x, "folder": Path("a")})


@pytest.mark.parametrize(
    ("model", "data", "names"),
    [
        (Measured, Resumable, ("hyper_parameters.metrics (MeanSquaredError)",)),
        (Line, Normalizing, ("datamodule_hyper_parameters.transform (function)",)),
    ],
)
def test_hyperparameters_that_are_objects_are_left_out_with_one_line(
    model: Any, data: Any, names: tuple[str], fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(model, data, output_dir="alone", **OPTIONS)
    fit(model, data, output_dir="parts", crash=("before_batch", BATCHES + 3), **OPTIONS)
    capsys.readouterr()
    fit(model, data, output_dir="parts", **OPTIONS)
    assert_same("alone", "parts", names)
    lines = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert len(lines) == 1 and all(name in lines[0] for name in names)
    assert "hp_metric" not in lines[0]


class Holder(pl.Callback):
    """Returns an object that no checkpoint holds, and a defaultdict of lists."""

    def __init__(self) -> None:
        self.lock, self.seen = object(), defaultdict(list)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.seen[trainer.current_epoch].append(np.float64(trainer.global_step))

    def state_dict(self) -> dict[str, Any]:
        return {"lock": self.lock, "seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lock, self.seen = state_dict["lock"], state_dict["seen"]


def test_a_callback_gets_its_own_object_where_its_state_was_left_out(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Line, Resumable, callbacks=(Holder(),), crash=("before_batch", BATCHES + 3), **OPTIONS)
    assert "after a resume, callbacks.Holder.lock (object) will start" in capsys.readouterr().out
    resumed = Holder()
    fit(Line, Resumable, callbacks=(resumed,), **OPTIONS)
    assert type(resumed.lock) is object  # Lightning copies a state
    assert resumed.seen == {n: [*range(8 * n + 1, 8 * n + 9)] for n in range(3)}


def test_an_optimizer_with_an_object_ends_the_run_before_its_first_step(fit: Fit) -> None:
    class Grouped(Line):
        steps = 0

        def configure_optimizers(self) -> Any:
            group = {"params": self.parameters(), "scale": lambda x: x}
            return torch.optim.SGD([group], 0.1)

        def on_train_batch_start(self, *_: Any) -> None:
            Grouped.steps += 1

    with pytest.raises(UserError, match=r"optimizer_states.0.param_groups.0.scale is a function"):
        fit(Grouped)
    assert Grouped.steps == 0
