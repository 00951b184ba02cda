"""Checks of model and data, for mistakes that Lightning reports late or never."""

import contextlib
import difflib
import itertools
import math
import sys
from collections import UserDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.nn.parameter import is_lazy
from torch.utils.data import BatchSampler, SequentialSampler
from torchmetrics import Metric

from smlightning.data.exact import sampler_of
from smlightning.data.workers import LostBatches
from smlightning.errors import UserError, is_users_file
from smlightning.parts import is_plain
from smlightning.tensors import attributes, objects
from smlightning.training import loop
from smlightning.training.loaders import all_loaders, overfits
from smlightning.training.metrics import updates
from smlightning.training.rank_checks import DividedData, DividedStream, EqualRanks, SharedMetrics

REGISTER = {
    "dict": "make it a torch.nn.ModuleDict, or of parameters a ParameterDict",
    "list": "make it a torch.nn.ModuleList, or of parameters a ParameterList",
}
BATCH_NORMS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
)
DROPOUTS = (
    torch.nn.Dropout,
    torch.nn.Dropout1d,
    torch.nn.Dropout2d,
    torch.nn.Dropout3d,
    torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout,
)
OTHERWISE = "make it a torch.nn.ModuleList or ModuleDict, or its class a torch.nn.Module"


def training_checks(data_divided: bool = True) -> list[pl.Callback]:
    """Callbacks that find mistakes before training or while it runs.

    Args:
        data_divided: reject ranks that have the same data; False if that is intended.
    """
    checks: list[pl.Callback] = [
        EqualRanks(),
        DividedStream(),
        StepCheck(),
        SharedMetrics(),
        FreshMetrics(),
        FiniteMetrics(),
        KeptTensors(),
        LostBatches(),
    ]
    return [DividedData(), *checks] if data_divided else checks


def check_complete(model: pl.LightningModule, data: pl.LightningDataModule) -> None:
    """Check that the best weights can be tested and saved when training ends.

    Raises:
        UserError: ``test_step``, ``test_dataloader`` or ``save`` is missing, or a method's name
            is a misspelt hook, or the whole model is compiled.
    """
    if type(model).__name__ == "OptimizedModule":  # of torch.compile, and not imported
        raise UserError(
            "the whole LightningModule is compiled, in which self.log raises (Lightning#21836)",
            "compile the network in it: self.net.compile() in configure_model",
        )
    for owner, attribute in ((data, "prepare_data_per_node"), (model, "_modules")):
        if attribute not in vars(owner):
            raise UserError(
                f"{type(owner).__name__}.__init__ does not call the base class's",
                "begin it with super().__init__()",
            )
        for name, hook in misspelt_hooks(owner):
            raise UserError(
                f"{type(owner).__name__}.{name} is never called: Lightning has no such hook",
                f"did you mean {hook}?",
            )
    required: Any = ((model, "test_step"), (data, "test_dataloader"))
    missing = [
        f"{type(owner).__name__} has no {method}"
        for owner, method in required
        if not is_overridden(method, owner)
    ]
    if not callable(getattr(model, "save", None)):
        missing.append(f"{type(model).__name__} has no save(directory)")
    if missing:
        raise UserError(
            f"{' and '.join(missing)}, which a run calls after training",
            "add the methods; save may do nothing",
        )


def misspelt_hooks(owner: Any) -> Iterator[tuple[str, str]]:
    """Methods of the user's class that Lightning does not call, and the hooks they resemble."""
    kind = pl.LightningModule if isinstance(owner, pl.LightningModule) else pl.LightningDataModule
    hooks = [name for name in dir(kind) if callable(getattr(kind, name)) and name[0] != "_"]
    missing = [name for name in hooks if not is_overridden(name, owner, parent=kind)]
    for name, value in vars(type(owner)).items():
        if callable(value) and name not in hooks:
            for hook in difflib.get_close_matches(name, missing, 1, cutoff=0.93):
                yield name, hook


def untrained_layers(model: torch.nn.Module, optimized: set[int]) -> Iterator[tuple[str, str]]:
    """Names and classes of the objects whose layers torch does not know and no optimizer has.

    They are lists, dicts, dataclasses and objects of the project's own classes, nested or not.
    """
    known = {id(weights) for weights in model.parameters()} | optimized
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name == "_hparams_initial":
                continue  # Lightning's copy of the arguments, which save_hyperparameters makes
            if any(id(weights) not in known for weights in _weights_within(value)):
                yield f"{path}.{name}".lstrip("."), type(value).__name__


def trained_weights(
    model: torch.nn.Module, without: tuple[type, ...] = ()
) -> Iterator[torch.nn.Parameter]:
    """The weights that require gradients, without those of metrics, which are not trained.

    Args:
        without: other classes of modules to leave out.
    """
    if not isinstance(model, (Metric, *without)):
        yield from (each for each in model.parameters(recurse=False) if each.requires_grad)
        for child in model.children():
            yield from trained_weights(child, without)


def _weights_within(value: Any) -> Iterator[torch.nn.Parameter]:
    """`trained_weights` in a collection or an object.

    It skips a layer that is the value itself: nobody hides it from torch by mistake.
    """
    layers_and_weights = torch.nn.Module | torch.nn.Parameter
    is_empty = isinstance(value, layers_and_weights) or is_plain(value)
    for each in () if is_empty else objects(value, _contents):
        if isinstance(each, torch.nn.Module):
            yield from trained_weights(each)
        elif isinstance(each, torch.nn.Parameter) and each.requires_grad:
            yield each


def _contents(value: Any) -> Iterable[Any]:
    """Items of a collection; attributes of a dataclass, and of an object of the project's class."""
    if isinstance(value, Mapping):
        return value.values() if isinstance(value, dict | UserDict) else ()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, type | torch.nn.Module | pl.LightningDataModule | pl.Trainer):
        return ()
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    is_own = is_dataclass(value) or isinstance(value, SimpleNamespace)
    return attributes(value) if is_own or (file and is_users_file(file)) else ()


def doubts(
    trainer: pl.Trainer, model: pl.LightningModule, optimized: set[int]
) -> Iterator[UserError]:
    """Settings that train otherwise than many would expect, and may be meant.

    Args:
        optimized: ids of the weights that an optimizer has.
    """
    own = {id(weights) for weights in trained_weights(model) if not is_lazy(weights)}
    wanted = {name: p for name, p in model.named_parameters() if id(p) in own}
    left_out = [name for name, weights in wanted.items() if id(weights) not in optimized]
    if left_out:
        numbers = sum(wanted[name].numel() for name in left_out)
        yield UserError(
            f"{len(left_out)} of {len(wanted)} parameters ({left_out[0]}, …; {numbers:,} numbers) "
            "are in no optimizer, and stay as they are",
            "give them to one in configure_optimizers; if this is meant, requires_grad_(False)",
        )
    doubles = [name for name, weights in wanted.items() if weights.dtype == torch.float64]
    is_meant = trainer.precision == "64-true" or torch.get_default_dtype() == torch.float64
    if doubles and not is_meant:
        yield UserError(
            f"{len(doubles)} of {len(wanted)} parameters ({doubles[0]}, …) are float64, and on a "
            "GPU float32 is many times faster",
            "call .float() on the network; if it is meant, torch.set_default_dtype(torch.float64)",
        )
    rates = [group.get("lr", 1) for each in trainer.optimizers for group in each.param_groups]
    schedules = trainer.lr_scheduler_configs if model.automatic_optimization else []
    by_epoch = bool(schedules) and all(config.interval == "epoch" for config in schedules)
    if not any(rates) and by_epoch and trainer.current_epoch == 0:
        yield UserError(
            "the learning rate is 0 in the first epoch, after which the schedule changes it",
            'change it after each step: {"scheduler": ..., "interval": "step"}',
        )
    repeats = trainer.num_training_batches > 1 and trainer.max_epochs != 1
    in_order = any(map(_in_order, all_loaders(trainer.train_dataloader)))
    if repeats and in_order and not overfits(trainer):
        yield UserError(
            "the training loader does not shuffle, so each epoch has the same batches",
            "pass shuffle=True to the DataLoader, unless the order matters",
        )
    batches, accumulate = trainer.num_training_batches, trainer.accumulate_grad_batches
    rest = 0 if math.isinf(batches) else int(batches) % accumulate
    if rest:
        yield UserError(
            f"accumulate_grad_batches is {accumulate}, and a rank has {batches} batches in an "
            f"epoch: its last step has {rest}, and so {rest}/{accumulate} of a mean gradient",
            "use smlightning.data.batches.loader, or a batch_size and accumulate_grad_batches "
            "that divide the data",
        )


def _in_order(loader: Any) -> bool:
    """Whether a DataLoader gives the rows in the data's own order."""
    sampler = sampler_of(loader)
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return isinstance(sampler, SequentialSampler)


def evaluating(model: torch.nn.Module) -> Iterator[str]:
    """Names of the trained modules whose dropout or batch norms are in evaluation mode.

    The model's own name is "". Batch norms on their own may keep their statistics on purpose.
    """
    for name, module in model.named_modules():
        if module.training or not any(map(_evaluates_otherwise, module.modules())):
            continue
        if any(True for _ in trained_weights(module, without=BATCH_NORMS)):
            yield name


def _evaluates_otherwise(module: torch.nn.Module) -> bool:
    """Whether a module is in evaluation mode, and gives other values than in training."""
    acts = isinstance(module, BATCH_NORMS) or (isinstance(module, DROPOUTS) and module.p > 0)
    return acts and not module.training


def kept_tensors(model: torch.nn.Module, with_graph: bool) -> dict[str, int]:
    """For each list and dict of the model whose newest item holds a tensor, the number of items.

    Args:
        with_graph: only if the tensor keeps the graph of its step.
    """
    counts = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, list | dict):
                with contextlib.suppress(Exception):  # a subclass may have any methods
                    if _holds_tensor(value, with_graph):
                        counts[f"{path}.{name}".lstrip(".")] = len(value)
    return counts


def _holds_tensor(value: list | dict, with_graph: bool) -> bool:
    """Whether the newest item is, or holds, a tensor."""
    if not value:
        return False
    newest = value[next(reversed(value))] if isinstance(value, dict) else value[-1]
    tensors = [each for each in _items(newest) if isinstance(each, torch.Tensor)]
    return any(not with_graph or tensor.grad_fn is not None for tensor in tensors)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


class KeptTensors(pl.Callback):
    """Warns once of a list of the model that gets tensors in each step and is not emptied.

    It looks after the batches `LOOKS` and at the start of the first three epochs of a run, and
    then leaves the Trainer. A model may gather losses over some batches and then empty the list.
    """

    LOOKS = (1, 2, 3, 64)

    def __init__(self) -> None:
        self.batches = 0  # of this run
        self.steps: list[dict[str, int]] = []  # of lists of tensors with a graph, the lengths
        self.epochs: list[dict[str, int]] = []  # of those of any tensors

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any
    ) -> None:
        self.batches += 1
        if self.batches not in self.LOOKS:
            return
        self.steps.append(kept_tensors(pl_module, with_graph=True))
        if self.batches < self.LOOKS[-1]:
            return
        for name, lengths in grown(self.steps):
            growth = lengths[1] - lengths[0]
            if lengths[-1] - lengths[0] >= growth * (self.LOOKS[-1] - 1):
                problem = f"{name} keeps the graph of each step, so memory grows"
                hint = "append loss.detach(), or loss.item() if you need the number"
                self._warn(trainer, UserError(problem, hint))
                return
        self._leave_if_done(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if len(self.epochs) == 3:
            return
        self.epochs.append(kept_tensors(pl_module, with_graph=False))
        if len(self.epochs) < 3:
            return
        validation = sum(trainer.num_val_batches)  # type: ignore[arg-type]
        batches = min(trainer.num_training_batches, validation or math.inf)
        for name, (_, first, second) in grown(self.epochs, max(batches, 2)):
            problem = (
                f"{name} had {first} items with tensors after one epoch and {second} after two, so "
                "memory grows"
            )
            hint = f"empty it at the end of each epoch, self.{name}.clear()"
            self._warn(trainer, UserError(problem, hint))
            return
        self._leave_if_done(trainer)

    def _leave_if_done(self, trainer: pl.Trainer) -> None:
        """Leave after the last batch of `LOOKS`, unless three epochs start in this run."""
        third = trainer.current_epoch + 3 - len(self.epochs)
        starts = len(self.epochs) < 3 and not 0 < (trainer.max_epochs or 0) <= third
        if self.batches >= self.LOOKS[-1] and not starts:
            loop.leave(trainer, self)

    def _warn(self, trainer: pl.Trainer, warning: UserError) -> None:
        loop.leave(trainer, self)
        if trainer.is_global_zero:
            print(f"warning: {warning}", file=sys.stderr)


def grown(history: list[dict[str, int]], least: float = 1) -> Iterator[tuple[str, list[int]]]:
    """Names whose length grew by this much between each two looks, and the lengths."""
    for name in history[-1]:
        lengths = [counts.get(name, 0) for counts in history]
        if all(later - earlier >= least for earlier, later in itertools.pairwise(lengths)):
            yield name, lengths


class FreshMetrics(pl.Callback):
    """Warns once of a torchmetrics object that an evaluation adds to earlier batches.

    One whose ``compute()`` is logged, and which nobody resets, covers all epochs; one that training
    uses, too, covers both. If nobody asks for its sum, only its values of single batches are used.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] | None = None  # of updates, before this evaluation
        self.warned = False

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any
    ) -> None:
        """All hooks that may reset a metric have been called."""
        if self.counts is None:
            self.counts = updates(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        before, self.counts = self.counts or {}, None
        now = updates(pl_module, only_computed=True)
        added_to = [name for name, count in before.items() if 0 < count < now.get(name, 0)]
        if added_to and not self.warned and trainer.is_global_zero:
            self.warned = True
            stage = "test" if trainer.testing else "validation"
            print(
                f"warning: {added_to[0]} is not reset before the {stage} and covers earlier "
                f"batches, too; log the metric itself, call {added_to[0]}.reset() after compute(), "
                "or use one metric for each stage",
                file=sys.stderr,
            )

    on_test_batch_start = on_validation_batch_start
    on_test_end = on_validation_end


class FiniteMetrics(pl.Callback):
    """Warns once of each metric of a validation or test that is not finite."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # warned of

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = {} if trainer.sanity_checking else trainer.callback_metrics
        names = {name for name in metrics if not name.startswith("train")} - self.names
        values = {name: float(metrics[name]) for name in names}
        found = sorted(name for name, value in values.items() if not math.isfinite(value))
        self.names.update(found)
        if found and trainer.is_global_zero:
            stage = f"a validation of epoch {trainer.current_epoch + 1}"
            pairs = ", ".join(f"{name}={values[name]}" for name in found)
            print(
                f"warning: {pairs} in {'the test' if trainer.testing else stage}; look for such "
                "values in the data, lower the learning rate or clip gradients",
                file=sys.stderr,
            )

    on_test_end = on_validation_end


class StepCheck(pl.Callback):
    """Rejects a training without an optimizer, and one whose steps return no loss."""

    def __init__(self) -> None:
        self.looked = False  # at the optimizers
        self.has_loss = False
        self.batches = 0  # of this run
        self.warned = False  # of evaluation mode

    def state_dict(self) -> dict[str, Any]:
        """A resumed run may have only batches left that training_step skips on purpose."""
        return {"has_loss": self.has_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.has_loss = state_dict["has_loss"]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look once before the first step, when hooks may have replaced layers."""
        if self.looked:
            return
        self.looked = True
        trained = {id(weights) for weights in pl_module.parameters()}
        optimized = {
            id(weights)
            for optimizer in trainer.optimizers
            for group in optimizer.param_groups
            for weights in group["params"]
        }
        # If configure_optimizers returns None, Lightning's optimizer has a tensor of its own.
        if not trained & optimized:
            raise UserError(
                "configure_optimizers returns no optimizer of the model's parameters, so nothing "
                "would be trained",
                "return an optimizer of self.parameters() from it",
            )
        for name, kind in untrained_layers(pl_module, optimized):
            raise UserError(
                f"{name} is a plain {kind} of layers, which torch neither trains nor saves",
                f"{REGISTER.get(kind, OTHERWISE)}; if they are not to be trained, call their "
                "requires_grad_(False)",
            )
        several = len(trainer.optimizers) > 1
        if trainer.max_steps != -1 and several and not pl_module.automatic_optimization:
            raise UserError(
                f"max_steps={trainer.max_steps} would end training too early: with several "
                "optimizers, Lightning counts each one's steps",
                "set epochs, or the Trainer's limit_train_batches, instead",
            )
        if trainer.is_global_zero:
            for warning in doubts(trainer, pl_module, optimized):
                print(f"warning: {warning}", file=sys.stderr)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self.batches += 1
        self.has_loss |= not pl_module.automatic_optimization or bool(outputs)
        name = next(evaluating(pl_module), None) if batch_idx == 0 and not self.warned else None
        if name is not None:
            self.warned = True
            if trainer.is_global_zero:
                print(
                    f"warning: {name or 'the model'} is in evaluation mode in training, so dropout "
                    f"is off and batch norms keep their statistics; call {name or 'self'}.train() "
                    "after eval() and from_pretrained, or requires_grad_(False) to freeze it",
                    file=sys.stderr,
                )

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        if trainer.current_epoch != 1 or pl_module.automatic_optimization or not schedulers:
            return
        if trainer.is_global_zero and all(each.last_epoch == 0 for each in schedulers):
            print(
                "warning: no learning rate scheduler was stepped in the first epoch; in manual "
                "optimization, call self.lr_schedulers().step() yourself",
                file=sys.stderr,
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called also if ``max_steps``, ``max_time`` or early stopping ends the epoch before."""
        if self.batches and not self.has_loss:
            raise UserError(
                f"training_step returned nothing in {self.batches} batches, so nothing was trained",
                "return the loss from it, or set self.automatic_optimization = False and step the "
                "optimizer yourself",
            )
