"""Validation: what it has to log, when it comes, and which weights it makes the best ones."""

import abc
from typing import Any

import pytest
from pytorch_lightning import callbacks

from small_training import (
    BATCHES,
    Fit,
    InOrder,
    Line,
    Numbers,
    Stream,
    curve_rows,
    same,
    saved_weights,
)
from smlightning.errors import UserError


def validated_steps() -> list[int]:
    return [int(row["step"]) for row in curve_rows() if "val/score" in row]


class Scored(Line, abc.ABC):
    """Logs a score of its own."""

    @abc.abstractmethod
    def score(self) -> float: ...

    def on_validation_epoch_end(self) -> None:
        self.log("val/score", self.score())
        super().on_validation_epoch_end()


def test_a_monitor_that_validation_does_not_log_is_an_error_before_training(fit: Fit) -> None:
    class Untrained(Line):
        def on_train_start(self) -> None:
            raise AssertionError("it trains")

    with pytest.raises(UserError) as caught:
        fit(Untrained, best=("max", "val/bleu"))
    assert "max val/bleu" in caught.value.problem and "val/loss" in caught.value.problem
    assert "MONITOR" in caught.value.hint
    with pytest.raises(UserError) as caught:
        fit(Untrained, best=("maximum", "val/loss"))
    assert "'maximum'" in caught.value.problem


def test_the_validation_before_training_changes_nothing_after_it(fit: Fit) -> None:
    models = {}
    for output, steps in (("checked", 1), ("unchecked", 0)):
        trainer = fit(output_dir=output, trainer={"num_sanity_val_steps": steps})
        models[output] = trainer.lightning_module
        assert len(models[output].evaluated) == 3 + steps
    assert same(saved_weights("checked"), saved_weights("unchecked"))
    assert curve_rows("checked") == curve_rows("unchecked")
    assert models["checked"].trained == models["unchecked"].trained


@pytest.mark.parametrize(
    ("data", "options", "steps"),
    [
        (InOrder, {}, [3, 6, 8, 11, 14, 16]),
        (InOrder, {"accumulate_grad_batches": 2}, [3, 4, 7, 8]),
        (InOrder, {"val_check_steps": 50}, [8, 16]),
        (Stream, {"max_steps": 14, "epochs": 9}, [3, 6, 8, 11, 14]),
    ],
    ids=["plain", "accumulation", "longer than an epoch", "stream"],
)
def test_validation_within_epochs_chooses_the_best_weights(
    data: type, options: dict[str, Any], steps: list[int], fit: Fit
) -> None:
    class Scripted(Scored):
        def score(self) -> float:
            return float(self.global_step == BATCHES + 3)

    trainer = fit(Scripted, data, ("max", "val/score"), **{"val_check_steps": 3, **options})
    assert validated_steps() == steps
    evaluated = trainer.lightning_module.evaluated
    fitted = [weight for state, weight in evaluated if state == "fit"][1:]
    best = steps.index(BATCHES + 3) if BATCHES + 3 in steps else 0
    assert evaluated[-1] == ("test", fitted[best])


def test_train_py_tests_and_saves_the_best_weights(fit: Fit) -> None:
    """Afterwards the Trainer evaluates these, or those that are named."""

    class Scripted(Scored):
        def score(self) -> float:
            return (0.5, 0.9, 0.1)[min(self.current_epoch, 2)]

    saver = callbacks.ModelCheckpoint(save_top_k=-1)
    trainer = fit(Scripted, best=("max", "val/score"), epochs=3, callbacks=(saver,))
    model = trainer.lightning_module
    fitted = [weight for state, weight in model.evaluated if state == "fit"][1:]
    assert len(set(fitted)) == 3 and model.evaluated[-1] == ("test", fitted[1])
    assert saved_weights()["0.weight"][0].item() == fitted[1]
    trainer.validate(model, datamodule=Numbers(), verbose=False)
    assert model.evaluated[-1] == ("validate", fitted[1])
    path = saver.best_model_path  # of the last epoch
    trainer.test(model, datamodule=Numbers(), verbose=False, ckpt_path=path)
    assert model.evaluated[-1] == ("test", fitted[2])


def test_without_a_finite_value_the_last_weights_are_saved_and_the_run_fails(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    class Undefined(Scored):
        def score(self) -> float:
            return float("nan") if self.current_epoch else float("inf")

        def on_test_epoch_end(self) -> None:
            super().on_test_epoch_end()
            evaluated.extend(self.evaluated)

    evaluated: list[tuple[str, float]] = []
    with pytest.raises(UserError, match="no validation gave a finite val/score"):
        fit(Undefined, best=("max", "val/score"))
    assert evaluated[-1] == ("test", evaluated[-2][1])
    assert saved_weights()["0.weight"][0].item() == evaluated[-1][1]
    warnings = capsys.readouterr().err
    assert warnings.count("warning: val/score=inf in a validation of epoch 1") == 1
    assert "no validation gave a finite val/score; the last weights" in warnings
    fit(Undefined, best=("max", "val/score"), max_steps=1, output_dir="other")
    assert "training ended before the first validation; the last weights" in capsys.readouterr().err


def test_a_value_that_is_not_finite_is_never_the_best(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    class Scripted(Scored):
        def score(self) -> float:
            return (float("-inf"), 0.9, float("nan"))[min(self.current_epoch, 2)]

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test/score", float("inf"))

    trainer = fit(Scripted, best=("min", "val/score"), epochs=3)
    evaluated = trainer.lightning_module.evaluated
    fitted = [weight for state, weight in evaluated if state == "fit"][1:]
    assert evaluated[-1] == ("test", fitted[1])
    captured = capsys.readouterr()
    assert "warning: test/score=inf in the test" in captured.err
    assert captured.out.endswith("\ntest/score inf\n")


class OwnNames(Line):
    """Names of metrics as in no example here."""

    names = "val_loss", "test_loss"

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log(self.names[0], self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log(self.names[1], self.loss(batch))


@pytest.mark.parametrize(
    "names",
    [
        ("val_loss", "test_loss"),
        ("val/loss", "test_loss"),
        ("valid/loss", "test/loss"),
        ("validation_rmse", "test_rmse"),
        ("eval_loss", "test_loss"),
        ("Loss/Val", "Loss/Test"),
        ("loss", "test_loss"),
        ("auroc-dev", "auroc-test"),
        ("interval/loss", "test/interval/loss"),
    ],
)
def test_the_last_line_is_the_tests_counterpart_of_any_monitor(
    names: tuple[str, str], fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    model = type("Model", (OwnNames,), {"names": names})
    mode = "max" if "auroc" in names[0] else "min"
    trainer = fit(model, best=(mode, names[0]), epochs=1)
    value = trainer.callback_metrics[names[1]]
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"{names[1]} {value:.4f}"
    assert not captured.err.count("warning:")


def test_a_test_without_a_counterpart_lists_what_it_logged(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(type("Model", (OwnNames,), {"names": ("val_mae", "mse")}), best=("min", "val_mae"))
    assert "warning: the test logged mse; expected test_mae" in capsys.readouterr().err


class NamedByStage(OwnNames):
    """As pytorch-forecasting's models: ``sanity_check_loss``."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        stage = self.trainer.state.stage
        self.log(f"{'val' if stage == 'validate' else stage}_loss", self.loss(batch))


class LoggedLater(OwnNames):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_other", self.loss(batch))
        if not self.trainer.sanity_checking:
            super().validation_step(batch, batch_idx)


class Mixin:
    """Asks in a property, and in a function within a method."""

    trainer: Any

    @property
    def checks(self) -> bool:
        return any(self.trainer.sanity_checking for _ in range(1))


class LoggedByMixin(Mixin, OwnNames):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.checks:
            super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("model", [NamedByStage, LoggedLater, LoggedByMixin])
def test_the_first_validation_decides_and_not_the_check_before_training(
    model: type, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(model, best=("min", "val_loss"))
    assert capsys.readouterr().out.splitlines()[-1].startswith("test_loss ")


def test_a_first_validation_without_the_monitor_ends_the_run_and_loses_nothing(
    fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="validation logged val_loss, val_other") as caught:
        fit(LoggedLater, best=("min", "val_total"))
    assert "MONITOR" in caught.value.hint
    capsys.readouterr()
    fit(LoggedLater, best=("min", "val_loss"), resume="auto")
    out = capsys.readouterr().out
    assert f"step {BATCHES} of" in out and out.splitlines()[-1].startswith("test_loss ")
