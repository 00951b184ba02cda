"""What Lightning would notice only after an epoch of training, at its end, or never is refused
before.
"""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.model_helpers import is_overridden

from smlightning.data.workers import LostBatches
from smlightning.errors import UserError
from smlightning.training.rank_checks import DividedData, EqualRanks, SharedMetrics


def training_checks(data_divided: bool = True) -> list[pl.Callback]:
    """Callbacks that find mistakes before training, or in its first epoch.

    Args:
        data_divided: reject ranks that are given the same data; False where that is intended.
    """
    checks: list[pl.Callback] = [EqualRanks(), EarlyStoppingCheck(), StepCheck()]
    checks += [SharedMetrics(), LostBatches()]
    return [DividedData(), *checks] if data_divided else checks


def refuse_incomplete(model: pl.LightningModule, data: pl.LightningDataModule) -> None:
    """Check that the best weights can be tested and saved when training ends.

    Raises:
        UserError: ``test_step``, ``test_dataloader``, ``save`` or ``draw`` is missing.
    """
    for owner, attribute in ((data, "prepare_data_per_node"), (model, "_modules")):
        if attribute not in vars(owner):
            raise UserError(
                f"{type(owner).__name__}.__init__ does not call the base class's",
                "begin it with super().__init__()",
            )
    required: Any = ((model, "test_step"), (data, "test_dataloader"))
    missing = [
        f"{type(owner).__name__} has no {method}"
        for owner, method in required
        if not is_overridden(method, owner)
    ]
    for method in ("save", "draw"):
        if not callable(getattr(model, method, None)):
            missing.append(f"{type(model).__name__} has no {method}(directory)")
    if missing:
        raise UserError(
            "the best weights are tested and saved when training ends, and "
            f"{' and '.join(missing)}",
            "add what is missing; save and draw may do nothing",
        )


class StepCheck(pl.Callback):
    """Refuses a training without an optimizer, and one whose steps return no loss."""

    def __init__(self) -> None:
        self.has_loss = False
        self.batches = 0  # until one had a loss

    def state_dict(self) -> dict[str, Any]:
        """A resumed run may have only batches left that are left out on purpose."""
        return {"has_loss": self.has_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.has_loss = state_dict["has_loss"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trained = {id(weights) for weights in pl_module.parameters()}
        optimized = [
            id(weights)
            for optimizer in trainer.optimizers
            for group in optimizer.param_groups
            for weights in group["params"]
        ]
        # Where configure_optimizers returns None, Lightning makes one of a tensor of its own.
        if not trained & set(optimized):
            raise UserError(
                "configure_optimizers gives no optimizer of the model's parameters, so nothing "
                "would be trained",
                "return an optimizer of self.parameters() there",
            )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self.has_loss:
            return
        self.batches += 1
        self.has_loss = not pl_module.automatic_optimization or bool(outputs)
        if trainer.is_last_batch:
            self._check_loss()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """``max_steps``, ``max_time`` and early stopping may end training within the epoch."""
        self._check_loss()

    def _check_loss(self) -> None:
        if self.batches and not self.has_loss:
            raise UserError(
                f"training_step returned nothing in {self.batches} batches, so nothing was trained",
                "return the loss there, or set self.automatic_optimization = False and step the "
                "optimizer yourself",
            )


class EarlyStoppingCheck(pl.Callback):
    """Refuses an EarlyStopping whose metric validation does not log.

    Lightning would find out after an epoch, or with ``strict=False`` never.
    """

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        logged = trainer.callback_metrics
        prefixes = {name.partition("/")[0] for name in logged}  # train/… is not logged yet
        for stopper in trainer.early_stopping_callbacks:
            monitor = stopper.monitor
            if monitor not in logged and monitor.partition("/")[0] in prefixes:
                raise UserError(
                    f"EarlyStopping waits for {monitor}, "
                    f"but validation logged {', '.join(sorted(logged))}",
                    "name one of these",
                )
