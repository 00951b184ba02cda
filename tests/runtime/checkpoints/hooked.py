"""Models and callbacks whose hooks and steps change what Lightning's checkpoints leave out."""

import copy
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torchmetrics
from pytorch_lightning import callbacks

from small_training import SIZE, Line, Resumable
from smlightning_sagemaker.testing import owner, recording


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
    """An object of the user's own class with a state, as an average of weights often is."""

    def __init__(self) -> None:
        self.average: torch.Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]

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


class Watching(Line):
    """The loss that the log prints decides the learning rate."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        schedule = {"scheduler": plateau, "monitor": "train/loss"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Shadow(pl.Callback):
    """A moving average in a callback without a ``state_dict``."""

    average: torch.Tensor | None = None

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        weight = module.net[0].weight.data
        before = weight if self.average is None else self.average
        self.average = before.lerp(weight, 0.2)
        weight.lerp_(self.average, 0.1)


class Taught(Line):
    """A teacher that is no submodule, so that no optimizer gets it."""

    def on_fit_start(self) -> None:
        self.teachers = [copy.deepcopy(self.net).requires_grad_(False)]
        self.teachers[0].steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weight = self.teachers[0][0].weight.detach()
        self.teachers[0].steps += 1
        self.teachers[0][0].weight.data.lerp_(self.net[0].weight.data, 0.1)  # type: ignore[operator]
        pull = (self.net[0].weight - weight).square().sum()
        return super().training_step(batch, batch_idx) + pull * self.teachers[0].steps


class Copied(pl.Callback):
    """The usual average of the weights: a copy of the network, changed in place."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.module = pl_module
        self.average = {"net": copy.deepcopy(pl_module.net)}

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        average = self.average["net"][0].weight.data  # type: ignore[index]
        average.lerp_(module.net[0].weight.data, 0.2)
        module.net[0].weight.data.lerp_(average, 0.1)


class Lookahead(torch.optim.Adam):
    """Keeps slow weights and a count as attributes, which its ``state_dict`` leaves out."""

    def __init__(self, weights: list[Any]) -> None:
        super().__init__(weights, 0.05)
        self.weights, self.count = weights, 0
        self.slow = [weight.detach().clone() for weight in weights]

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        self.count += 1
        for slow, weight in zip(self.slow, self.weights, strict=True):
            weight.data.lerp_(slow.lerp_(weight.data, 0.5), 0.1 * (self.count % 3))
        return loss


class Looking(Line):
    def configure_optimizers(self) -> Any:
        return Lookahead([*self.parameters()])


def finetuning() -> pl.Callback:
    return callbacks.BackboneFinetuning(1, lambda epoch: 1.5, verbose=False)


class Ranked(Measured):
    """Each rank has noise and a mean of its own; all have one average of the weights."""

    def on_fit_start(self) -> None:
        self.noise = torch.Generator().manual_seed(self.global_rank)
        self.average = {"weight": self.net[0].weight.detach().clone()}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        number, x, y = batch
        noisy = x + torch.rand(x.shape, generator=self.noise)
        return super().training_step((number, noisy, y), batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        self.average["weight"].lerp_(self.net[0].weight.data, 0.1)
        self.net[0].weight.data.lerp_(self.average["weight"], 0.1)

    def on_train_epoch_end(self) -> None:
        """The ranks' means differ, and so may not decide anything."""


CASES = {
    "Model.on_train_batch_end": (Averaging, ()),
    "Callback.on_train_epoch_start": (Line, (Halved,)),
    "BackboneFinetuning": (Backbone, (finetuning,)),
    "attributes, modes and generators": (Curriculum, ()),
    "means of the epoch": (Measured, ()),
    "a schedule by the log's loss": (Watching, ()),
    "a callback's attribute": (Line, (Shadow,)),
    "copies of the network": (Taught, (Copied,)),
    "an own optimizer": (Looking, ()),
    "ranks": (Ranked, ()),
}


def run(write: Callable[[dict[str, Any]], Any], name: str, kill_at: int) -> None:
    """train.py with one of CASES; SIGKILL after so many batches of this run."""
    model, makers = CASES[name]
    constructor = pl.Trainer

    class Edited(constructor):  # type: ignore[misc,valid-type]
        def __init__(self, callbacks: Any, **given: Any) -> None:
            super().__init__(callbacks=[*callbacks, *(make() for make in makers)], **given)

    pl.Trainer = Edited  # type: ignore[misc]
    project = owner.load()
    project.data.Data, project.model.Model = Resumable, model
    project.train.MONITOR, project.train.MODE = "val/loss", "min"
    size = SIZE // int(os.environ.get("WORLD_SIZE", "1"))
    options = {"epochs": 3, "checkpoint_steps": 1, "log_every": 4, "batch_size": size}
    recording.train(write, options, kill_at)
