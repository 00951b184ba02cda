"""Hooks of the model and of callbacks may change anything: a checkpoint holds none half done."""

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from pytorch_lightning import callbacks

from small_training import BATCHES, Alone, Fit, Line, Resumable, assert_same, same, saved_weights
from smlightning.cluster import ending, signals
from smlightning.errors import UserError

OPTIONS = {"epochs": 3, "checkpoint_steps": 1}


class Averaging(Line):
    """An average of the weights in a buffer, which every step mixes into the weights again."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(self.width, 1))

    def on_train_batch_end(self, *_: Any) -> None:
        weight = self.net[0].weight.data
        self.average.lerp_(weight, 0.1)
        weight.lerp_(self.average, 0.01).clamp_(-1.0, 1.0)


class Backbone(Line):
    """A part that `BackboneFinetuning` freezes for an epoch."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.backbone = self.net[0]

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net[2].parameters(), 0.05)


class Halved(pl.Callback):
    """Halves the learning rate at the beginning of each epoch."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] /= 2


class Curriculum(Line):
    """Attributes, modes and generators that hooks and steps change."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1, self.width), persistent=False)
        self.torch_generator = torch.Generator().manual_seed(1)
        self.numpy_generator = np.random.default_rng(2)
        self.python_generator = random.Random(3)
        self.recent: deque[float] = deque(maxlen=3)
        self.order = np.arange(self.width)
        self.own = Own()
        self.layers = [weight for weight in self.net.parameters()]  # no copies of them

    def on_train_start(self) -> None:
        self.shadow = {name: weight.detach().clone() for name, weight in self.named_parameters()}

    def on_train_epoch_start(self) -> None:
        self.strength = 0.1 * self.current_epoch
        self.net[1].p = 0.2 * self.current_epoch
        self.net[0].bias.requires_grad_(self.current_epoch != 1)
        self.net[1].train(self.current_epoch != 2)
        self.mask[0, self.current_epoch] = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.order = self.numpy_generator.permutation(self.order)
        noise = torch.randn(1, generator=self.torch_generator) + self.python_generator.random()
        x = batch[1] + self.strength * noise
        hidden = self.net[1](self.net[0](x)[:, self.order] * self.mask)
        loss = torch.nn.functional.mse_loss(self.net[2](hidden), batch[2])
        self.recent.append(loss.item())
        return loss * (1 + sum(self.recent)) + self.own.pull(self.net)

    def on_train_batch_end(self, *_: Any) -> None:
        for name, weight in self.named_parameters():
            self.shadow[name].lerp_(weight.data, 0.1)
        with torch.no_grad():
            self.layers[0].lerp_(self.shadow["net.0.weight"], 0.05)


class Own:
    """An object of the user's own class, as an average of weights often is."""

    def __init__(self) -> None:
        self.average: torch.Tensor | None = None

    def pull(self, net: torch.nn.Module) -> torch.Tensor:
        weight = net[2].weight  # type: ignore[index]
        before = weight.detach() if self.average is None else self.average
        self.average = before.lerp(weight.detach(), 0.5)
        return (weight - self.average).square().sum()


class Measured(Line):
    """The epoch's means, by ``self.log`` and by a metric object, decide the learning rate."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train/mean", loss, on_epoch=True, on_step=True)
        self.log("train/most", loss, on_epoch=True, on_step=False, reduce_fx=max)
        if batch_idx == 0:
            self.log("train/first", loss, on_epoch=True, on_step=False)
        self.mean.update(loss)
        self.log("train/object", self.mean, on_epoch=True, on_step=False)
        return loss

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        names = ("train/mean_epoch", "train/most", "train/first", "train/object")
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] *= 1 - 0.1 * sum(metrics[name].item() for name in names) % 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        schedule = {"scheduler": plateau, "monitor": "train/mean_epoch"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Shadow(pl.Callback):
    """A moving average in a callback without a ``state_dict``."""

    average: torch.Tensor | None = None

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        weight = module.net[0].weight.data
        before = weight if self.average is None else self.average
        self.average = before.lerp(weight, 0.2)
        weight.lerp_(self.average, 0.1)


def finetuning() -> pl.Callback:
    return callbacks.BackboneFinetuning(1, lambda epoch: 1.5, verbose=False)


CASES = {
    "Model.on_train_batch_end": (Averaging, ()),
    "Callback.on_train_epoch_start": (Line, (Halved,)),
    "BackboneFinetuning": (Backbone, (finetuning,)),
    "attributes, modes and generators": (Curriculum, ()),
    "means of the epoch": (Measured, ()),
    "a callback's attribute": (Line, (Shadow,)),
}
MOMENTS = [
    ("before_batch", 4),
    ("before_epoch", 2),
    ("before_batch", 2 * BATCHES + 3),
    ("on_validation_batch_end", 5),  # the second epoch's
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_resumed_run_repeats_no_hook(
    name: str, moment: tuple[str, int], fit: Fit, alone: Alone
) -> None:
    model, makers = CASES[name]

    def run(output_dir: str, **more: Any) -> None:
        every = tuple(make() for make in makers)
        fit(model, Resumable, callbacks=every, output_dir=output_dir, **OPTIONS, **more)

    run("alone")
    run("resumed", crash=moment)
    run("resumed")
    assert_same("alone", "resumed", name)


class Swapping(Line):
    """Validates an average of its weights, as many models do by hand.

    A signal arrives within the validation after ``stopped_at`` steps.
    """

    stopped_at = -1

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(self.width, 1))

    def exchange(self) -> None:
        weight = self.net[0].weight.data
        kept = weight.clone()
        weight.copy_(self.average)
        self.average.copy_(kept)

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.lerp_(self.net[0].weight.data, 0.3)

    def on_validation_epoch_start(self) -> None:
        self.exchange()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.validated = self.net[0].weight.detach().clone()
        if self.trainer.global_step == self.stopped_at:
            signals._state.requested = "SIGTERM"

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.exchange()


def test_the_validated_weights_are_the_best_and_a_stop_among_them_is_exact(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The average is in the weights' place while a signal arrives."""
    options = {"data": Resumable, "epochs": 1}
    model = fit(Swapping, output_dir="alone", **options).lightning_module
    assert torch.equal(saved_weights("alone")["0.weight"], model.validated)
    with monkeypatch.context() as patch:
        patch.setattr(Swapping, "stopped_at", BATCHES)
        try:
            with pytest.raises(ending.Stopped):
                fit(Swapping, output_dir="stopped", **options)
        finally:
            signals._state.requested, ending._state.stopped_at = "", float("inf")
    fit(Swapping, output_dir="stopped", **options)
    assert_same("alone", "stopped", "a stop within validation")


def test_weights_that_are_not_averaged_yet_are_validated_and_saved(fit: Fit) -> None:
    """EMAWeightAveraging would put the initial weights in their place (Lightning#21724)."""
    late = callbacks.EMAWeightAveraging(update_starting_at_step=1000)
    options = {"data": Resumable, "epochs": 2}
    fit(Line, callbacks=(late,), output_dir="averaged", **options)
    fit(Line, output_dir="plain", **options)
    assert same(saved_weights("averaged"), saved_weights("plain"))


def test_a_callback_before_the_projects_is_rejected(fit: Fit) -> None:
    class Before(pl.Trainer):
        """As train.py with ``callbacks=[Halved(), *run.callbacks()]``."""

        def __init__(self, callbacks: Any, **given: Any) -> None:
            super().__init__(callbacks=[Halved(), *callbacks], **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl, "Trainer", Before)
        with pytest.raises(UserError, match="Halved comes before"):
            fit(Line, Resumable)
