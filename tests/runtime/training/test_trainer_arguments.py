"""Every argument of Lightning's Trainer and every callback: it works as in Lightning, or is
rejected in one sentence.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks as lightnings

from small_training import BATCHES, Fit, Line, Numbers, Resumable
from smlightning.checkpoints.unsupported import check_trainer
from smlightning.errors import UserError, as_user_error, described

Check = Callable[[pl.Trainer], Any]


class Observed(Line):
    """Notes the largest number of a gradient after clipping, as Lightning's own method clips, and
    whether validation may compute gradients.
    """

    largest = 0.0
    grad_in_validation = False

    def optimizer_step(self, *args: Any, **options: Any) -> None:
        super().optimizer_step(*args, **options)
        gradients = [p.grad.abs().max().item() for p in self.parameters() if p.grad is not None]
        self.largest = max(self.largest, *gradients)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.grad_in_validation = not torch.is_inference_mode_enabled()
        super().validation_step(batch, batch_idx)


def steps(number: int) -> Check:
    return lambda trainer: trainer.global_step == number


def trained(trainer: pl.Trainer) -> list[list[int]]:
    return trainer.lightning_module.trained  # type: ignore[union-attr]


# train.py passes these itself, from options or the cluster; other tests check them.
GIVEN = {
    "accelerator", "strategy", "devices", "num_nodes", "precision", "deterministic", "max_epochs",
    "max_steps", "accumulate_grad_batches", "gradient_clip_val", "log_every_n_steps",
    "num_sanity_val_steps", "enable_progress_bar", "enable_model_summary", "callbacks", "logger",
}  # fmt: skip

WORKS: dict[str, tuple[Any, Check]] = {
    "fast_dev_run": (True, steps(1)),
    "min_epochs": (1, steps(2 * BATCHES)),
    "min_steps": (2, steps(2 * BATCHES)),
    "max_time": ({"microseconds": 1}, steps(1)),
    "limit_train_batches": (3, steps(6)),
    "limit_val_batches": (1, lambda trainer: trainer.num_val_batches == [1]),
    "limit_test_batches": (1, lambda trainer: trainer.num_test_batches == [1]),
    "limit_predict_batches": (1, lambda trainer: trainer.limit_predict_batches == 1),
    "overfit_batches": (1, lambda trainer: len({tuple(rows) for rows in trained(trainer)}) == 1),
    "val_check_interval": (
        0.5, lambda trainer: len(trainer.lightning_module.evaluated) == 1 + 4 + 1
    ),
    "check_val_every_n_epoch": (
        2, lambda trainer: len(trainer.lightning_module.evaluated) == 1 + 1 + 1
    ),
    "gradient_clip_algorithm": (
        "value", lambda trainer: 0 < trainer.lightning_module.largest <= 1.0
    ),
    "benchmark": (True, lambda _: torch.backends.cudnn.benchmark),
    "detect_anomaly": (True, steps(2 * BATCHES)),
    "inference_mode": (False, lambda trainer: trainer.lightning_module.grad_in_validation),
    "use_distributed_sampler": (False, steps(2 * BATCHES)),
    "profiler": ("simple", lambda trainer: trainer.profiler.recorded_durations),
    "plugins": ([], steps(2 * BATCHES)),
    "sync_batchnorm": (True, steps(2 * BATCHES)),
    "reload_dataloaders_every_n_epochs": (1, steps(2 * BATCHES)),
    "default_root_dir": ("here", lambda trainer: trainer.default_root_dir.endswith("here")),
    "enable_autolog_hparams": (False, steps(2 * BATCHES)),
    "model_registry": ("name", steps(2 * BATCHES)),
}  # fmt: skip
ALONE = [  # these change which batches come
    "fast_dev_run", "max_time", "limit_train_batches", "overfit_batches", "val_check_interval",
    "check_val_every_n_epoch",
]  # fmt: skip
REFUSED: dict[str, Any] = {"enable_checkpointing": False, "barebones": True}
ALSO_REFUSED = [("val_check_interval", "00:00:00:10", Numbers), ("overfit_batches", 1, Resumable)]

CALLBACKS: dict[str, Callable[[], pl.Callback]] = {
    "DeviceStatsMonitor": lightnings.DeviceStatsMonitor,
    "EMAWeightAveraging": lightnings.EMAWeightAveraging,
    "EarlyStopping": lambda: lightnings.EarlyStopping("val/loss"),
    "LambdaCallback": lightnings.LambdaCallback,
    "LearningRateMonitor": lightnings.LearningRateMonitor,
    "ModelCheckpoint": lambda: lightnings.ModelCheckpoint("elsewhere"),
    "ModelSummary": lightnings.ModelSummary,
    "OnExceptionCheckpoint": lambda: lightnings.OnExceptionCheckpoint("elsewhere"),
    "RichModelSummary": lightnings.RichModelSummary,
    "SpikeDetection": lambda: lightnings.SpikeDetection(atol=1e9, rtol=None),
    "ThroughputMonitor": lambda: lightnings.ThroughputMonitor(lambda batch: len(batch[0])),
    "Timer": lambda: lightnings.Timer("00:01:00:00"),
    "WeightAveraging": lambda: lightnings.WeightAveraging(use_buffers=False),  # one is of bools
}
OTHER_WEIGHTS = ["EMAWeightAveraging", "EarlyStopping", "WeightAveraging"]
BARS = ("ProgressBar", "RichProgressBar", "TQDMProgressBar")  # with enable_progress_bar
OF_OTHERS = (
    "BaseFinetuning",
    "BasePredictionWriter",
    "Callback",
    "Checkpoint",
)  # to be derived from
FINETUNING = "BackboneFinetuning"
REFUSED_CALLBACKS: dict[str, Callable[[], pl.Callback]] = {
    "BatchSizeFinder": lightnings.BatchSizeFinder,
    "GradientAccumulationScheduler": lambda: lightnings.GradientAccumulationScheduler({1: 2}),
    "LearningRateFinder": lightnings.LearningRateFinder,
    "ModelPruning": lambda: lightnings.ModelPruning("l1_unstructured", amount=0.5),
    "StochasticWeightAveraging": lambda: lightnings.StochasticWeightAveraging(0.01),
}


def refusal(fit: Fit, *args: Any, **options: Any) -> UserError:
    with pytest.raises(Exception) as refused:
        fit(*args, **options)
    sentence = as_user_error(refused.value)
    if sentence is None and isinstance(refused.value, ValueError):
        return UserError(described(refused.value), "")  # Lightning's own check of an argument
    assert sentence and sentence.hint, refused.value
    return sentence


def test_the_tables_are_lightnings() -> None:
    arguments = set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"}
    assert arguments == GIVEN | WORKS.keys() | REFUSED.keys()
    named = {*CALLBACKS, *BARS, *OF_OTHERS, FINETUNING, *REFUSED_CALLBACKS}
    assert set(lightnings.__all__) == named


@pytest.mark.parametrize("names", [*([name] for name in ALONE), sorted(WORKS.keys() - ALONE)])
def test_arguments_work(names: list[str], fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    trainer = fit(Observed, trainer={name: WORKS[name][0] for name in names})
    for name in names:
        assert WORKS[name][1](trainer), name


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [*((name, value, Numbers) for name, value in REFUSED.items()), *ALSO_REFUSED],
)
def test_an_argument_is_rejected(name: str, value: Any, data: type, fit: Fit) -> None:
    refusal(fit, data=data, trainer={name: value})


@pytest.mark.parametrize(
    "names", [*([name] for name in OTHER_WEIGHTS), sorted(CALLBACKS.keys() - OTHER_WEIGHTS)]
)
def test_callbacks_work(names: list[str], fit: Fit) -> None:
    trainer = fit(callbacks=tuple(CALLBACKS[name]() for name in names))
    assert trainer.global_step == 2 * BATCHES


@pytest.mark.parametrize("name", REFUSED_CALLBACKS)
def test_a_callback_is_rejected(name: str, fit: Fit) -> None:
    sized = type("Sized", (Numbers,), {"batch_size": 6})
    assert name in refusal(fit, data=sized, callbacks=(REFUSED_CALLBACKS[name](),)).problem


def test_a_progress_bar_works_where_bars_are_enabled(fit: Fit) -> None:
    bar = lightnings.TQDMProgressBar(refresh_rate=0)
    trainer = fit(callbacks=(bar,), trainer={"enable_progress_bar": True})
    assert trainer.progress_bar_callback is bar


def test_finetuning_works_on_one_rank(fit: Fit) -> None:
    class WithBackbone(Line):
        @property
        def backbone(self) -> torch.nn.Module:
            return self.net[0]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.net[2].parameters(), 0.05)

    trainer = fit(WithBackbone, callbacks=(lightnings.BackboneFinetuning(1),))
    assert len(trainer.optimizers[0].param_groups) > 1


def test_predict_works_after_fit(fit: Fit) -> None:
    class Predicting(Line):
        def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.net(batch[1])

    trainer = fit(Predicting, max_steps=1)
    predicted: Any = trainer.predict(trainer.lightning_module, Numbers().val_dataloader())
    assert [len(batch) for batch in predicted] == [5, 5]


def test_no_rank_saves_alone_after_an_error() -> None:
    """Saving is collective, and the other ranks do not save."""
    saver = lightnings.OnExceptionCheckpoint("elsewhere")
    trainer: Any = SimpleNamespace(callbacks=[saver], world_size=2)
    with pytest.raises(UserError, match="OnExceptionCheckpoint saves on a rank that failed"):
        check_trainer(trainer, "fit")
