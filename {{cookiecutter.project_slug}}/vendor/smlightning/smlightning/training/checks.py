"""What Lightning would notice only after an epoch of training, or at its end, is refused before."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.model_helpers import is_overridden

from smlightning.errors import UserError


def refuse_without_test(model: pl.LightningModule, data: pl.LightningDataModule) -> None:
    """Check that the best weights can be tested when training ends.

    Raises:
        UserError: ``test_step`` or ``test_dataloader`` is missing.
    """
    required: Any = ((model, "test_step"), (data, "test_dataloader"))
    missing = [
        f"{type(owner).__name__} has no {method}"
        for owner, method in required
        if not is_overridden(method, owner)
    ]
    if missing:
        raise UserError(
            f"the best weights are tested when training ends, and {' and '.join(missing)}",
            "add what is missing",
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
