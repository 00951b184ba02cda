"""Model.save, the last step of a run: tried before step 1, and called after the test."""

import contextlib
import copy
import inspect
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.seed import isolate_rng

from smlightning import copies
from smlightning.cluster import collectives
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.errors import UserError, described, error_chain, is_disk_full
from smlightning.training import hangs

TRIAL = ".trial"  # in the folder of the model: the same disk, the same permissions
LARGE = 5 * 10**9  # bytes of a model of which only one number a tensor is tried
# They may come from values that training or the test sets: the trial warns.
LATER = (AttributeError, LookupError, ArithmeticError, AssertionError)
# The errors that a copy with one number a tensor shows as well as the model.
SHAPELESS = (UserError, TypeError, OSError, ImportError)


class SaveTrial(pl.Callback):
    """Before step 1, tries on rank 0 what the run does last: load weights, save, read back.

    It works on a copy, keeps the state of random numbers, and removes its folder. It skips resumed
    runs, which were tried before. With a sharded or large model it tries one number a tensor, and
    does not read back: the other numbers would need time, and space on the disk.

    Args:
        directory: the model's.
    """

    def __init__(self, directory: Path) -> None:
        self.folder = directory / TRIAL

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.ckpt_path:
            return
        with hangs.slow():
            if trainer.is_global_zero:
                with isolate_rng():
                    self._try(trainer, pl_module)
            collectives.any_rank(False)  # the others wait here, as long as rank 0 may take

    def _try(self, trainer: pl.Trainer, module: Any) -> None:
        name = type(module).__name__
        strategy = trainer.strategy
        whole = sum(tensor.nbytes for tensor in copies.tensors(module)) < LARGE
        try:
            if isinstance(strategy, ShardedStrategy):
                whole, model = False, strategy.sample or copies.copied(module)
            else:
                model = copies.copied(module, one_number=not whole)
        except Exception as error:  # of the model's attributes
            reason = described(error)
            _warn(f"{name}.save is not tried before training: the model cannot be copied: {reason}")
            return
        with self._temporary():
            with _explained(f"{name}.save", LATER, whole):
                best = copy.deepcopy(model.state_dict())
                model.load_state_dict(best, strict=model.strict_loading)
                self.folder.mkdir(parents=True)
                model.save(self.folder)
            load = loader_of(model)
            if load and whole:
                with _explained(f"load of what {name}.save wrote", (*LATER, ImportError), whole):
                    load(self.folder)

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[None]:
        shutil.rmtree(self.folder, ignore_errors=True)  # left by a killed process
        try:
            yield
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def loader_of(model: Any) -> Any:
    """The function ``load(directory)`` of the model's file, as docs/model.md has it, or None."""
    file = type(model).__module__
    load: Any = getattr(sys.modules.get(file), "load", None)
    if getattr(load, "__module__", "") != file:
        return None
    try:
        inspect.signature(load).bind(Path())
    except (TypeError, ValueError):
        return None
    return load


@contextlib.contextmanager
def _explained(task: str, later: tuple[type, ...], whole: bool) -> Iterator[None]:
    """Turn an error of the trial into a UserError, or into a warning if it may come from that."""
    try:
        yield
    except Exception as error:
        if not whole and not isinstance(error, SHAPELESS):
            return
        reason = reason_of(error)
        if not any(isinstance(cause, later) for cause in error_chain(error)):
            raise UserError(
                f"{task} fails, tried before step 1: {reason}",
                "correct it now; if only the test makes it work, let it work without a test, too",
            ) from error
        _warn(
            f"{task} fails before step 1: {reason}; if it needs what training or the test sets, "
            "this is fine; else correct it now"
        )


def save(model: Any, directory: Path, checkpoint: Path | None, rerun: str) -> None:
    """Call Model.save.

    Args:
        checkpoint: the newest, which has the best weights.
        rerun: how to resume, as a sentence.

    Raises:
        UserError: it failed.
    """
    try:
        model.save(directory)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__}.save failed: {reason_of(error)}; the best weights are in "
            f"{checkpoint}",
            f"correct the cause, and {rerun}: it only tests and saves; to save elsewhere, add "
            f"--output_dir and --resume {checkpoint}",
        ) from error


def reason_of(error: Exception) -> str:
    """The error in one line."""
    reason = str(error) if isinstance(error, UserError) else described(error)
    return f"the disk is full ({reason})" if is_disk_full(error) else reason


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
