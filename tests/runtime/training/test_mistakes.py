"""Mistakes that show in training end in one sentence and a status, not in a stack trace."""

import dataclasses
import os
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, default_collate

import train
from small_training import BATCHES, SIZE, Fit, Line, Manual, Numbers, rows
from smlightning import entry
from smlightning.cluster import signals
from smlightning.training.checks import KeptTensors


@pytest.fixture
def main(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Does what `python src/train.py` does without options, but trains like `fit`."""
    monkeypatch.setattr(signals, "install", lambda: None)
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def run(*args: Any, **options: Any) -> int:
        return entry.main(lambda _: fit(*args, **options), train.Options, None)

    return run


def test_an_error_of_lightnings_configuration_is_a_sentence(
    main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(Manual, accumulate_grad_batches=2) == 1
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert "gradient accumulation" in line


def test_an_error_before_the_ranks_meet_is_in_the_failure_file(
    main: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that of an import in data.py."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("SM_OUTPUT_DIR", ".")
    assert entry.main(full, train.Options, None) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line and line == f"error: {Path('failure').read_text()}"


class Nothing(Line):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        pass


class WithoutValues(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.left = torch.nn.Linear(1, 1, device="meta")


class NoOptimizer(Line):
    def configure_optimizers(self) -> None:
        return None


class OthersOptimizer(Line):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)


class Misspelt(Line):
    def validation_stepp(self, batch: Any, batch_idx: int) -> None:
        pass

    validation_step = pl.LightningModule.validation_step


def compiled(**options: Any) -> Any:
    return torch.compile(Line())


class Unregistered(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.more = [torch.nn.Linear(1, 1)]


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any = None


class Helper:
    """A class of the project that is no torch.nn.Module."""

    def __init__(self) -> None:
        self.head = torch.nn.Linear(1, 1)


def layer() -> torch.nn.Linear:
    return torch.nn.Linear(1, 1)


def holding(value: Callable[[Any], Any]) -> type:
    """A model with an attribute that torch does not look into."""

    class Holding(Line):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.heads = value(self)

    return Holding


class Cyclic:
    def __init__(self) -> None:
        self.itself = self
        self.layers = (layer(),)


HIDDEN = [
    (holding(lambda _: {"spend": layer()}), "heads is a plain dict of layers", "ModuleDict"),
    (holding(lambda _: (layer(),)), "heads is a plain tuple of layers", "ModuleList"),
    (holding(lambda _: {layer()}), "heads is a plain set of layers", "ModuleList"),
    (holding(lambda _: {"a": [1, {"b": layer()}]}), "heads is a plain dict", "ModuleDict"),
    (holding(lambda _: OrderedDict(a=layer())), "heads is a plain OrderedDict", "ModuleDict"),
    (holding(lambda _: Pair(1, layer())), "heads is a plain Pair of layers", "torch.nn.Module"),
    (holding(lambda _: SimpleNamespace(a=layer())), "heads is a plain SimpleN", "torch.nn.Module"),
    (holding(lambda _: Helper()), "heads is a plain Helper of layers", "torch.nn.Module"),
    (holding(lambda _: Cyclic()), "heads is a plain Cyclic of layers", "torch.nn.Module"),
    (holding(lambda _: [torch.nn.Parameter(torch.ones(1))]), "heads is a plain", "ParameterList"),
    (holding(lambda self: [self.net, layer()]), "heads is a plain list", "requires_grad_(False)"),
]


@pytest.mark.parametrize(("model", "problem", "hint"), HIDDEN)
def test_layers_that_torch_does_not_see_end_the_run_before_the_first_step(
    model: type, problem: str, hint: str, main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model) == 1
    captured = capsys.readouterr()
    assert f"error: {problem}" in captured.err and hint in captured.err
    assert "step=" not in captured.out


class Recorded(Line):
    """An argument is a list of its layers, of which Lightning keeps a copy."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        outputs = [layer()]
        self.save_hyperparameters({"outputs": outputs})
        self.outputs = torch.nn.ModuleList(outputs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + self.outputs[0].weight.sum()


class OnlyRecorded(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters({"outputs": [layer()]})


@pytest.mark.filterwarnings("ignore:.*nn.Module")
def test_layers_among_the_arguments_are_hidden_if_the_model_has_them_nowhere_else(
    main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(Recorded) == 0
    assert main(OnlyRecorded) == 1
    assert "_hparams is a plain AttributeDict of layers" in capsys.readouterr().err


class Scorer(torchmetrics.Metric):
    """A metric with a network of its own, as BERTScore."""

    def __init__(self) -> None:
        super().__init__()
        self.net = layer()
        self.add_state("total", torch.zeros(()), "sum")

    def update(self) -> None:
        pass

    def compute(self) -> torch.Tensor:
        return self.total


class Lazy(Line):
    """Layers of which the first batch decides the size; the optimizer has them."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyLinear(1))


def hide(model: Any) -> None:
    vars(model)["teacher"] = layer()


RIGHT = [
    holding(lambda self: [*self.net]),  # other names of registered layers
    holding(lambda self: {"all": self, "again": [self.net]}),
    holding(lambda _: {"teacher": layer().requires_grad_(False)}),
    holding(lambda _: [Scorer(), torchmetrics.MetricCollection([Scorer()])]),
    holding(lambda _: torch.nn.ModuleList([Scorer()])),
    holding(lambda _: {"options": [1, "two", None, torch.zeros(2)], "class": torch.nn.Linear}),
    holding(hide),
    Lazy,
]


@pytest.mark.parametrize("model", RIGHT)
def test_frozen_shared_and_lazy_layers_and_metrics_train_without_a_word(
    model: type, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(model, epochs=1)
    assert not re.findall("^warning.*", capsys.readouterr().err, re.M)


class Wrong(Line):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch)


class Leaving(Line):
    def on_train_epoch_end(self) -> None:
        sys.exit()


class Unsaved(Line):
    save = None  # type: ignore[assignment]


class Untested(Line):
    test_step = pl.LightningModule.test_step


class ModelWithoutSuper(Line):
    def __init__(self, **options: Any) -> None:
        pass


class TwoLoaders(Numbers):
    def val_dataloader(self) -> Any:
        return [super().val_dataloader(), super().val_dataloader()]


class OfTwoLoaders(Line):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val/loss", self.loss(batch))


class WithoutSuper(Numbers):
    def __init__(self, **options: Any) -> None:
        pass


class FingerprintMethod(Numbers):
    def fingerprint(self) -> str:
        return "points"


class LowestR2(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.fit_of_line = torchmetrics.R2Score()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.fit_of_line.update(self.net(batch[1]), batch[2])

    def on_validation_epoch_end(self) -> None:
        self.log("val/loss", self.fit_of_line)


class FewOptions(Numbers):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()


FewOptions.__init__.__qualname__ = "Data.__init__"


class Stateless(Line):
    """Its metric would go on with the sum of the epochs before."""

    class Sum(torchmetrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.tensor(0.0)

        def update(self, values: torch.Tensor) -> None:
            self.total += values.sum()

        def compute(self) -> torch.Tensor:
            return self.total

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lowest = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())  # its parts have states
        self.sum = self.Sum()


class LocalFunction(Numbers):
    def train_dataloader(self) -> DataLoader:
        collate = lambda items: default_collate(items)  # noqa: E731
        spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
        return DataLoader(rows(SIZE), SIZE, collate_fn=collate, **spawned)


@pytest.mark.parametrize(
    ("model", "data", "part"),
    [
        (Nothing, Numbers, "training_step returned nothing"),
        (NoOptimizer, Numbers, "configure_optimizers"),
        (OthersOptimizer, Numbers, "configure_optimizers"),
        (Leaving, Numbers, "sys.exit(None) ended the run"),
        (Unsaved, Numbers, "Unsaved has no save"),
        (Untested, Numbers, "Untested has no test_step"),
        (WithoutValues, Numbers, "is on the meta device, without values"),
        (compiled, Numbers, "the whole LightningModule is compiled"),
        (Misspelt, Numbers, "Misspelt.validation_stepp"),
        (Unregistered, Numbers, "more is a plain list"),
        (ModelWithoutSuper, Numbers, "ModelWithoutSuper.__init__"),
        (OfTwoLoaders, TwoLoaders, "val/loss/dataloader_idx_0"),
        (Line, WithoutSuper, "WithoutSuper.__init__"),
        (Line, FewOptions, "def __init__(self, **options)"),
        (Stateless, Numbers, "sum (Sum) has no state"),
        (Line, FingerprintMethod, "fingerprint is a method, whose text is another one"),
        (Line, LocalFunction, "by pickle: Can't pickle local object 'LocalFunction"),
        (LowestR2, Numbers, "MODE is 'min', and val/loss is torchmetrics' R2Score"),
    ],
)
def test_a_mistake_in_the_users_classes_is_one_sentence(
    model: Any, data: type, part: str, main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model, data) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (line,) = [x for x in error.splitlines() if x.startswith("error: ")]
    assert part in line and ";" in line


class OneLayer(Line):
    """Trains the first of its two layers."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[0].parameters(), 0.1)


class Frozen(OneLayer):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net[2].requires_grad_(False)


class Double(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net.double()

    def loss(self, batch: Any) -> torch.Tensor:
        number, x, y = batch
        return super().loss((number, x.double(), y.double()))


class WarmedUp(Line):
    """Its learning rate begins at 0, and changes as Lightning's default is: after each epoch."""

    interval = "epoch"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 2))
        config = {"scheduler": schedule, "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": config}


class WarmedUpByStep(WarmedUp):
    interval = "step"


class WarmedUpManually(WarmedUp):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()


class WarmedUpByHand(Line):
    """Sets the learning rate before each step, without a schedule."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.param_groups[0]["lr"] = 0.01


class Unshuffled(Numbers):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(rows(SIZE * BATCHES), SIZE)


class OneBatch(Numbers):
    """An epoch is one batch, as in training on all of the data."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(rows(SIZE), SIZE)


class OwnOrder(Numbers):
    """A sampler of the owner's: no warning, although the rows are not shuffled."""

    def train_dataloader(self) -> DataLoader:
        batches = [list(range(SIZE * batch, SIZE * (batch + 1))) for batch in range(BATCHES)]
        return DataLoader(rows(SIZE * BATCHES), batch_sampler=batches)


LEFT_OUT = "warning: 2 of 4 parameters (net.2.weight, …; 5 numbers) are in no optimizer"
PART = "warning: accumulate_grad_batches is 4, and a rank has 5 batches"


@pytest.mark.parametrize(
    ("model", "options", "warning"),
    [
        (Line, {}, ""),
        (OneLayer, {}, LEFT_OUT),
        (Frozen, {}, ""),
        (Line, {"accumulate_grad_batches": 5}, ""),
        (Line, {"accumulate_grad_batches": 4}, PART),
        (Line, {"accumulate_grad_batches": 8}, PART.replace("4", "8")),
        (Double, {}, "warning: 4 of 4 parameters (net.0.weight, …) are float64"),
        (WarmedUp, {}, "warning: the learning rate is 0 in the first epoch"),
        (WarmedUpByStep, {}, ""),
        (WarmedUpManually, {}, ""),
        (WarmedUpByHand, {}, ""),
        (Line, {"data": Unshuffled}, ""),
        (
            Line,
            {"data": Unshuffled, "epochs": 2},
            "warning: the training loader does not shuffle",
        ),
        (Line, {"data": OneBatch, "epochs": 2}, ""),
        (Line, {"data": OwnOrder, "epochs": 2}, ""),
    ],
)
def test_what_may_be_meant_is_a_warning_before_training(
    model: type, options: dict[str, Any], warning: str, fit: Fit, capsys: Any
) -> None:
    fit(model, trainer={"limit_train_batches": 5}, **{"epochs": 1, **options})
    warnings = [x for x in capsys.readouterr().err.splitlines() if x.startswith("warning")]
    assert len(warnings) == bool(warning) and "".join(warnings).startswith(warning)


class InDouble(Line):
    """Meant: Lightning makes all parameters float64."""

    def loss(self, batch: Any) -> torch.Tensor:
        number, x, y = batch
        return super().loss((number, x.double(), y.double()))


def test_double_precision_is_no_mistake(fit: Fit, capsys: Any) -> None:
    fit(InDouble, trainer={"precision": "64-true"}, epochs=1)
    assert not re.findall("^warning.*", capsys.readouterr().err, re.M)


class ShuffledValidation(Numbers):
    def val_dataloader(self) -> DataLoader:
        return DataLoader(rows(10), 5, shuffle=True)


def test_lightnings_warning_of_a_shuffled_validation_is_not_silenced(fit: Fit) -> None:
    with pytest.warns(UserWarning, match="`val_dataloader`'s sampler has shuffling enabled"):
        fit(data=ShuffledValidation, epochs=1)


class Replaced(Line):
    def on_train_epoch_start(self) -> None:
        self.net[2] = torch.nn.Linear(self.width, 1)


class Unstepped(Manual):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer, optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Stepped(Unstepped):
    def on_train_epoch_end(self) -> None:
        scheduler: Any = self.lr_schedulers()
        scheduler.step()


class NeverReset(Line):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.error.update(self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.log("val/loss", self.error.compute())


class Reset(NeverReset):
    def on_validation_epoch_start(self) -> None:
        self.error.reset()


class Shared(Line):
    """One metric for training and validation."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.error.update(loss)
        self.log("train/error", self.error, on_epoch=True, on_step=False)
        return loss


class OfOneBatch(Line):
    """The loss is a metric, of which only the value of a batch is used, as pytorch-forecasting's.

    Its sum goes on through all stages, and nobody asks for it.
    """

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.error(loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.error(self.loss(batch)))


class OfCollections(OfOneBatch):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.error: Any = torchmetrics.MetricCollection([torchmetrics.MeanMetric()])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.error(self.loss(batch))["MeanMetric"])


class NeverResetCollection(OfCollections):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.error.update(self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.log("val/loss", self.error.compute()["MeanMetric"])


class Evaluating(Line):
    def on_train_epoch_end(self) -> None:
        self.net.eval()  # and draws something


class EvaluatingSteps(Line):
    def loss(self, batch: Any) -> torch.Tensor:
        self.eval()
        return super().loss(batch)


class EvaluatingFrozen(Frozen):
    def on_train_start(self) -> None:
        self.net[2].eval()


class FixedNorms(Line):
    """Batch norms that keep their statistics, as detection models fine-tune."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net.insert(1, torch.nn.BatchNorm1d(self.width))

    def on_train_epoch_start(self) -> None:
        self.net[1].eval()


class FixedNormsInList(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(1)]).eval()

    def loss(self, batch: Any) -> torch.Tensor:
        number, x, y = batch
        return super().loss((number, self.norms[0](x), y))


class EvaluatingLayers(Evaluating):
    """Layers that give the same values in training and evaluation."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net[1] = torch.nn.Dropout(0.0)


class EvaluatingNorms(EvaluatingLayers):
    """A whole network in evaluation mode, in which only a batch norm acts otherwise."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net.insert(1, torch.nn.BatchNorm1d(self.width))


class Keeping(Line):
    """Keeps the losses of training."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.losses: list[Any] = []

    def keep(self, loss: torch.Tensor) -> Any:
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(self.keep(loss))
        return loss


class KeepingDicts(Keeping):
    def keep(self, loss: torch.Tensor) -> Any:
        return {"loss": loss, "name": "train"}


class KeepingValues(Keeping):
    def keep(self, loss: torch.Tensor) -> Any:
        return loss.detach()


class Clearing(KeepingValues):
    def on_train_epoch_end(self) -> None:
        self.losses.clear()


class KeepingNumbers(Keeping):
    def keep(self, loss: torch.Tensor) -> Any:
        return loss.item()


class KeepingOfEpochs(Line):
    """A value of each epoch."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.history: list[torch.Tensor] = []

    def on_train_epoch_end(self) -> None:
        self.history.append(self.net[0].weight.detach().clone())


@pytest.mark.parametrize(
    ("model", "warning"),
    [
        (Evaluating, "warning: net is in evaluation mode in training"),
        (EvaluatingSteps, "warning: the model is in evaluation mode in training"),
        (EvaluatingFrozen, ""),
        (FixedNorms, ""),
        (FixedNormsInList, ""),
        (EvaluatingLayers, ""),
        (EvaluatingNorms, "warning: net is in evaluation mode in training"),
        (
            KeepingValues,
            "warning: losses had 8 items with tensors after one epoch and 16 after two",
        ),
        (Clearing, ""),
        (KeepingNumbers, ""),
        (KeepingOfEpochs, ""),
        (OfOneBatch, ""),
        (OfCollections, ""),
        (NeverResetCollection, "warning: error.MeanMetric is not reset before the validation"),
        (Replaced, LEFT_OUT),
        (Unstepped, "warning: no learning rate scheduler was stepped"),
        (Stepped, ""),
        (NeverReset, "warning: error is not reset before the validation"),
        (Reset, ""),
        (Shared, "warning: error is not reset before the validation"),
    ],
)
def test_what_an_epoch_shows_is_one_warning(
    model: type, warning: str, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(model, epochs=3)
    warnings = [x for x in capsys.readouterr().err.splitlines() if x.startswith("warning")]
    assert len(warnings) == bool(warning) and "".join(warnings).startswith(warning)


class ManyBatches(Numbers):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(rows(70), 1, shuffle=True)


class Gathering(Keeping):
    """Keeps the losses of some batches, as truncated backpropagation through time does."""

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        if len(self.losses) == 33:
            self.losses.clear()


class Answers(dict):
    """A dict whose values are not those of Python's own."""

    def values(self) -> Any:
        return (self[name] for name in self)


class KeepingInDict(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.losses = Answers()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.losses[len(self.losses)] = loss = super().training_step(batch, batch_idx)
        return loss


class Unreadable(list):
    """Like a list of a library that has items of names only."""

    def __getitem__(self, name: Any) -> Any:
        raise KeyError(name)


class WithUnreadable(Line):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.columns = Unreadable([torch.zeros(1)])


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (Keeping, True),
        (KeepingDicts, True),
        (KeepingInDict, True),
        (Gathering, False),
        (WithUnreadable, False),
    ],
)
def test_a_graph_that_is_kept_for_64_batches_is_one_warning(
    model: type, kept: bool, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = fit(model, ManyBatches, epochs=2)
    warnings = [x for x in capsys.readouterr().err.splitlines() if x.startswith("warning")]
    assert len(warnings) == kept
    assert "".join(warnings).startswith("warning: losses keeps the graph of each step" * kept)
    assert not [each for each in trainer.callbacks if isinstance(each, KeptTensors)]


class Clipped(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            self.clip_gradients(optimizer, 1.0)


@pytest.mark.parametrize("clip", [1.0, 0.0])
@pytest.mark.parametrize("model", [Manual, Clipped])
def test_manual_optimization_trains_with_any_clipping(
    model: type, clip: float, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = fit(model, gradient_clip_val=clip)
    assert trainer.global_step == 4 * BATCHES
    out = capsys.readouterr().out
    assert ("gradient_clip_val=1 is not applied" in out) == bool(clip)
    assert "samples_per_second=" in out and "train/loss" not in out


def test_several_optimizers_and_max_steps_end_before_training(main: Any, capsys: Any) -> None:
    assert main(Manual, max_steps=50) == 1
    captured = capsys.readouterr()
    assert "max_steps=50" in captured.err and "step=" not in captured.out


def test_a_callback_with_the_other_mode_is_an_error(main: Any, capsys: Any) -> None:
    """EarlyStopping's own default is "min", also for an accuracy."""
    stopping = pl.callbacks.EarlyStopping("val/loss", mode="max")
    assert main(callbacks=(stopping,)) == 1
    assert "EarlyStopping has mode='max' for val/loss" in capsys.readouterr().err


class Late(pl.Callback):
    def on_exception(self, *_: Any) -> None:
        raise RuntimeError("the message service does not answer")


def test_an_error_in_on_exception_does_not_hide_the_first(main: Any, capsys: Any) -> None:
    assert main(Wrong, callbacks=(Late(),)) == 1
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error")]
    assert "training_step: TypeError: " in line


def test_another_error_has_its_line_and_its_cause_before_the_trace(main: Any, capsys: Any) -> None:
    assert main(Wrong) == 1
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith(("error", "Trace"))]
    assert lines[0].startswith("error: test_mistakes.py:") and lines[1].startswith("Traceback")
    assert "training_step: TypeError: " in lines[0]


def test_a_step_that_returns_nothing_ends_in_a_sentence_within_an_epoch(
    main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """No checkpoint is then complete, so the same command prints the error again."""
    for _ in range(2):
        assert main(Nothing, max_steps=3, checkpoint_steps=1) == 1
        assert "training_step returned nothing" in capsys.readouterr().err
        assert not list(Path("outputs/model").iterdir())


def test_without_the_projects_environment_a_sentence_says_so(tmp_path: Path) -> None:
    """For example, if another Python runs the script."""
    (tmp_path / "jsonargparse.py").write_text("raise ModuleNotFoundError(name='jsonargparse')")
    run = subprocess.run(
        [sys.executable, "src/train.py"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"},
        cwd=Path(train.__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1 and "make setup" in run.stderr
    assert len(run.stderr.splitlines()) == 1
