"""The best validation so far: its score, and its weights, which are tested and saved."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.combined_loader import CombinedLoader

from smlightning.checkpoints.best import Best
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.resume import ResumePoint
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.cluster import collectives, session
from smlightning.cluster.shards import weights_like
from smlightning.errors import UserError
from smlightning.tensors import checksums_of_parts
from smlightning.training import loop
from smlightning.training.metrics import sanity_check_differs

LOADERS = {
    "training": "train_dataloader",
    "validation": "val_dataloader",
    "test": "test_dataloader",
}


HINT_OF_SANITY_CHECK = (
    "; if only a whole validation logs it, write num_sanity_val_steps=0 in src/train.py"
)


class Validated:
    """The best validation so far; the writer has its weights.

    Args:
        monitor: the validation metric that marks the best weights.
        mode: whether its ``max`` or its ``min`` is best.
    """

    def __init__(self, monitor: str, mode: Literal["max", "min"]) -> None:
        self.best = Best(monitor, mode)
        self.here = False  # whether this process has validated
        self.tested: list[int] = []  # checksums of the weights to be tested
        self.shapes: dict[str, Any] = {}  # theirs, by name

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self.best)

    def resume(self, state: Mapping[str, Any], point: ResumePoint) -> bool:
        """Continue from a checkpoint; returns whether its best weights still count."""
        then = Best(**state)
        if then.criterion == self.best.criterion:
            self.best = then if point.with_best else self.best
            return True
        if session.current_cluster().rank == 0:
            print(
                f"resume: MODE and MONITOR were {then.criterion} and are now "
                f"{self.best.criterion}; earlier validations do not count",
                flush=True,
            )
        return False

    # In training

    def sanity_check(self, trainer: pl.Trainer) -> None:
        """Raise a UserError if validation will not log the metric. Collective."""
        # With several loaders Lightning has no metrics of validation_step before training.
        several = len(trainer.num_sanity_val_batches) > 1
        is_there = collectives.any_rank(self.best.monitor in trainer.callback_metrics)
        may_differ = collectives.any_rank(several or sanity_check_differs(trainer))
        if is_there or not may_differ:
            self._score(trainer)

    def compare(self, trainer: pl.Trainer, position: Position, writer: CheckpointWriter) -> None:
        """After a validation at ``position``: keep its weights if it is the best. Collective."""
        self.here = True
        before = self.best
        self.best = before.after(self._score(trainer), position)
        if self.best is not before:
            writer.choose_validated()

    def _score(self, trainer: pl.Trainer) -> float:
        """The monitored metric of a validation, the same on every rank. Collective."""
        monitor = self.best.monitor
        if collectives.any_rank(monitor not in trainer.callback_metrics):
            if not sum(trainer.num_val_batches):
                raise no_batch("validation", trainer.val_dataloaders)
            logged = ", ".join(sorted({*trainer.callback_metrics} - loop.PUBLISHED)) or "nothing"
            raise UserError(
                f"validation logged {logged}; expected {monitor}, since the {self.best.criterion} "
                "selects the best weights",
                f"log {monitor} in the model on every rank, or set MONITOR to one of these metrics"
                + (HINT_OF_SANITY_CHECK if trainer.sanity_checking else ""),
            )
        self.best.check_metric(loop.logged_metric(trainer, monitor))
        value = torch.tensor(float(trainer.callback_metrics[monitor]), dtype=torch.float64)
        return collectives.of_rank_0(value).item()

    def check_finite(self) -> None:
        """Raise a UserError if this process has validated, and never with a finite metric."""
        if self.here and self.best.score is None:
            raise UserError(
                f"no validation gave a finite {self.best.monitor}, so the saved model is that of "
                "the last step",
                "look for values in the data that are not finite, lower the learning rate or clip "
                "gradients",
            )

    # For the test

    def load(
        self, model: pl.LightningModule, writer: CheckpointWriter, point: ResumePoint | None
    ) -> None:
        """Load the best weights; keep the last ones if no validation was good. Collective.

        With DDP rank 0 has them, and a sum with the others' zeros distributes them, which every
        backend can do. With FSDP every rank has its shard.
        """
        weights = model.state_dict()
        if session.current_cluster().rank == 0:
            self._announce(writer.best_weights is not None, point)
        if writer.best_weights is None:
            writer.keep_validated(weights)
            writer.choose_validated()
        self.shapes = shapes(weights)
        self._set(model, writer, weights.keys())
        self.tested = checksums_of_parts(model.parameters())

    def _set(
        self, model: pl.LightningModule, writer: CheckpointWriter, names: Collection[str]
    ) -> None:
        """Load the best weights of these names, on every rank."""
        if writer.best_weights is not None:
            best = weights_like(writer.best_weights, model.state_dict())
            is_whole = best.keys() <= {*names}
            weights = {name: value for name, value in best.items() if name in names}
            model.load_state_dict(weights, strict=is_whole and model.strict_loading)
        if not writer.is_sharded:
            for name, tensor in model.state_dict().items():
                if name in names and torch.is_tensor(tensor):
                    tensor.copy_(collectives.of_rank_0(tensor))

    def _announce(self, are_there: bool, point: ResumePoint | None) -> None:
        if are_there:
            print(f"best weights: {self.best}", flush=True)
            return
        problem = f"no validation gave a finite {self.best.monitor}"
        if point and not point.with_best:
            problem = "the file of the best weights is damaged"
        elif not self.here and not point:
            problem = "training ended before the first validation"
        print(f"warning: {problem}; the last weights are tested and saved", file=sys.stderr)

    def before_test(self, model: pl.LightningModule, writer: CheckpointWriter) -> None:
        """Before the first batch, undo what hooks of the test did to the weights. Collective."""
        tested, self.tested = self.tested, []
        exchanged = tested and tested != checksums_of_parts(model.parameters())
        if not tested or not collectives.any_rank(bool(exchanged)):
            return
        names = self.shapes.keys()
        if self.restore(model, writer, names) and session.current_cluster().rank == 0:
            print(
                "warning: a hook exchanges the best weights for the test; they are tested and "
                "saved all the same; let it do so in validation only",
                file=sys.stderr,
            )

    def restore(
        self, model: pl.LightningModule, writer: CheckpointWriter, names: Collection[str]
    ) -> bool:
        """Load the best weights again, which hooks of the test may have changed. Collective.

        Args:
            names: of the weights to load; buffers that the test sets are its results.

        Returns:
            False if the hooks have replaced layers, for which there are no validated weights.
        """
        if shapes(model.state_dict()) == self.shapes:
            self._set(model, writer, names)
            return True
        if session.current_cluster().rank == 0:
            print(
                "warning: hooks of the test replace layers of the network; what they make of the "
                "best weights is tested and saved",
                file=sys.stderr,
            )
        return False


def shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of tensors by name."""
    return {name: getattr(value, "shape", None) for name, value in weights.items()}


def no_batch(split: str, loaders: Any) -> UserError:
    """The error for data without a batch, which Lightning passes over."""
    hint = f"check what {LOADERS[split]} returns"
    for loader in CombinedLoader(loaders, "sequential").flattened:
        batches = getattr(loader, "batch_sampler", None)
        if getattr(batches, "drop_last", False):
            rows, size = len(loader.dataset), getattr(batches, "batch_size", None)
            hint = f"lower batch_size: it is {size}, drop_last is set, and there are {rows} rows"
    return UserError(f"There is not one batch of {split} data", hint)
