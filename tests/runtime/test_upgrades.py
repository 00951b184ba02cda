"""Private parts of Lightning, torch, torchmetrics and others that the package uses are unchanged.

If a test fails after an upgrade, read that part of the library again, and adapt the module of the
package in the test's docstring.
"""

import ast
import inspect
import multiprocessing.queues
import multiprocessing.reduction
import random
import re
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from pytorch_lightning.callbacks import EarlyStopping, WeightAveraging
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.connectors import data_connector
from pytorch_lightning.trainer.connectors.checkpoint_connector import _CheckpointConnector
from pytorch_lightning.trainer.connectors.logger_connector import result
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.model_helpers import is_overridden
from tensorboard.summary.writer import event_file_writer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchmetrics.utilities import dim_zero_cat, dim_zero_sum

import smlightning
from smlightning.cluster import signals
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.data.exact import start_of
from smlightning.training import loaders
from smlightning.training import loop as loops


@pytest.fixture
def trainer() -> pl.Trainer:
    return pl.Trainer(
        logger=False,
        accelerator="cpu",
        devices=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_steps=2,
    )


RUNTIME = Path(smlightning.__file__).parent
# Python's, in spite of their form.
DOCUMENTED = {"_exit", "_getframe", "_current_frames", "_fields", "_replace"}
OF_DATA = {"_column", "_delta_log", "_task_hash"}  # an option's end, a folder, a key of records


def owners(trainer: pl.Trainer) -> dict[str, Any]:
    """Each private name that the package uses, with an object or class that has it."""
    fit_loop, logged = trainer.fit_loop, trainer._logger_connector
    epoch_loop: Any = fit_loop.epoch_loop
    layer, metric, ddp = torch.nn.Linear(1, 1), torchmetrics.SumMetric(), DDPStrategy()
    fused = torch.optim.AdamW(layer.parameters(), fused=True)
    module = pl.LightningModule()
    module.save_hyperparameters({"width": 1})
    return {
        # The Trainer and its loops: training/loop.py, cluster/signals.py, errors.py
        "_callback_metrics": logged,
        "_checkpoint_connector": trainer,
        "_first_loop_iter": logged,
        "_logger_connector": trainer,
        "_results": trainer,
        "_signal_connector": trainer,
        "_teardown": trainer,
        "_val_check_time_interval": trainer,
        "_batches_that_stepped": epoch_loop,
        "_broadcast_sigterm_tensor": epoch_loop,
        "_on_after_fetch": epoch_loop,
        "_on_before_fetch": epoch_loop,
        "_restarting": fit_loop,
        "_module_mode": epoch_loop.val_loop,
        "_interrupt": call,
        "_call_lightning_datamodule_hook": call,
        "_hparams_initial": module,
        "_prepare_dataloader": data_connector._DataConnector,
        # The sums of self.log: training/loop.py
        "_Metadata": result,
        "_ResultMetric": result,
        "_Sync": result,
        "_sync": result._Metadata("train", "loss"),
        # Strategies and callbacks: cluster/strategies.py, checkpoints/unsupported.py, errors.py
        "_average_model": WeightAveraging(),
        "_validate_condition_metric": EarlyStopping,
        "_process_group_backend": ddp,
        "_timeout": ddp,
        # Loaders and how they are divided: data/exact.py, training/loop.py
        "_accelerator_connector": trainer,
        "_last_train_dl_reload_epoch": fit_loop,
        # torchmetrics: training/metrics.py, training/loop.py
        "_computed": metric,
        "_defaults": metric,
        "_reductions": metric,
        "_update_count": metric,
        # torch: checkpoints/attributes.py, data/exact.py, errors.py, training/optimizers.py
        "_BaseDataLoaderIter": torch.utils.data.dataloader,
        "_backward_hooks": layer,
        "_backward_pre_hooks": layer,
        "_buffers": layer,
        "_forward_hooks": layer,
        "_forward_pre_hooks": layer,
        "_version": layer.weight,
        "_modules": layer,
        "_non_persistent_buffers_set": layer,
        "_parameters": layer,
        "_get_iterator": DataLoader,
        "_step_supports_amp_scaling": fused,
        "_try_get_data": _MultiProcessingDataLoaderIter,
        # Others: parts.py, data/workers.py, reports/log.py
        "_inst": random,
        "_rand": numpy.random.mtrand,
        "_AsyncWriterThread": event_file_writer,
        "_on_queue_feeder_error": multiprocessing.queues.Queue,
    }


def private_names() -> set[str]:
    """Private names of libraries in the package: attributes, imports, and whole strings.

    test_lazy_imports.py guards those of lazy imports.
    """
    paths = [path for path in RUNTIME.rglob("*.py") if not path.name.startswith("lazy_")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {name for node in nodes for name in defined(node)}
    used = {name for node in nodes for name in mentioned(node) if re.match("_[A-Za-z]", name)}
    return used - own - DOCUMENTED - OF_DATA


def defined(node: ast.AST) -> Iterator[str]:
    """The names that a statement of the package defines: its own."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield from [node.attr] if ast.unparse(node.value) == "self" else []


def mentioned(node: ast.AST) -> Iterator[str]:
    """The attribute, the imported names or the text of a node."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
        yield str(node.value)


def test_each_private_name_in_the_package_is_guarded(trainer: pl.Trainer) -> None:
    """Add a new one to `owners`, and a test of its meaning below if no other test has one."""
    assert private_names() - owners(trainer).keys() == set()


def test_each_private_name_exists(trainer: pl.Trainer) -> None:
    """The module of the package stands above the name in `owners`."""
    missing = [name for name, owner in owners(trainer).items() if not hasattr(owner, name)]
    assert not missing


def test_trainer_registers_signal_handlers_once() -> None:
    """cluster/signals.py replaces what registers them, and the broadcast of each step."""
    assert pl.Trainer._run.__code__.co_names.count("register_signal_handlers") == 1
    register = inspect.getsource(_SignalConnector.register_signal_handlers)
    assert "_sigterm_notifier_fn" in register
    callers = set()
    for name, method in vars(_SignalConnector).items():
        if inspect.isfunction(method) and "self._register_signal(" in inspect.getsource(method):
            callers.add(name)
    assert callers == {"register_signal_handlers", "teardown"}


def test_each_step_has_one_collective_and_it_is_replaced() -> None:
    """cluster/signals.py"""
    advance = inspect.getsource(_TrainingEpochLoop.advance)
    assert advance.count("self._broadcast_sigterm_tensor()") == 1
    of_torch = set(re.findall(r"torch\.distributed\.(\w+)", advance))
    assert of_torch <= {"is_available", "is_initialized"}, "a collective that is not replaced"


def test_replaced_handlers_and_broadcast_do_nothing(trainer: pl.Trainer) -> None:
    """cluster/signals.py"""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signals.replace_lightning_signal_handlers(trainer)
    trainer._signal_connector.register_signal_handlers()
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor()
    trainer._signal_connector.teardown()
    assert before == {number: signal.getsignal(number) for number in before}


def test_the_loops_have_the_private_counters(trainer: pl.Trainer) -> None:
    """training/loop.py reads steps without a public name."""
    loop = trainer.fit_loop
    assert loop._restarting is False
    assert loop.epoch_loop._batches_that_stepped == 0
    assert hasattr(trainer, "val_check_batch") and trainer._results is None
    assert trainer.is_last_batch is False
    assert loops.steps(trainer) == 0
    assert loops.batches_of_epoch(trainer) == 0 and loops.batches_trained(trainer) == 0
    trainer.fit(BoringModel())
    assert loop.epoch_loop._batches_that_stepped == trainer.global_step == 2


def test_the_loops_load_the_progress_that_is_written(trainer: pl.Trainer) -> None:
    """training/loop.py sets these keys; an unknown counter would keep its value."""
    state = trainer.fit_loop.state_dict()
    batches = ("epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress")
    for name in ("epoch_progress", *batches):
        for when in ("current", "total"):
            assert state[name][when].keys() <= {"ready", "started", "processed", "completed"}
    assert [state[name]["is_last_batch"] for name in batches] == [False, False]
    assert state["epoch_loop.state_dict"] == {"_batches_that_stepped": 0}
    loops.set_progress(
        state,
        step=11,
        epoch=1,
        batches=3,
        all_batches=11,
        last=False,
        validate=False,
        complete=False,
        max_steps=-1,
    )
    trainer.fit_loop.load_state_dict(state)
    assert loops.steps(trainer) == 11 and loops.batches_trained(trainer) == 11
    assert loops.batches_of_epoch(trainer) == 3 and trainer.current_epoch == 1


def test_loaders_that_are_no_dataloader_are_left_as_they_are() -> None:
    """data/exact.py: Lightning iterates what `Loaders` makes, and starts it after `fit` has loaded
    the loops' states; the epoch and its batches are then those of the checkpoint.
    """
    source = inspect.getsource(data_connector._DataConnector._prepare_dataloader)
    assert "if not isinstance(dataloader, DataLoader):" in source
    restored = inspect.getsource(pl.Trainer._run)
    assert 0 < restored.index("restore_training_state()") < restored.index("self._run_stage()")
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False)
    assert start_of(trainer) == (0, 0) and loops.divides_data(trainer)
    loops.set_reloaded(trainer, 3)
    assert "_last_train_dl_reload_epoch" in vars(trainer.fit_loop)


def test_an_interval_of_validation_may_be_a_time() -> None:
    """training/loop.py: ``validates_by_the_clock``"""
    options: Any = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    by_the_clock = pl.Trainer(val_check_interval="00:00:10:00", **options)
    assert by_the_clock._val_check_time_interval == 600
    assert loops.validates_by_the_clock(by_the_clock)
    assert not loops.validates_by_the_clock(pl.Trainer(val_check_interval=2, **options))


class LogsSums(BoringModel):
    """Logs a sum over the epoch, and notes what the logger connector has at each step's end."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/sum", torch.tensor(1.0), on_step=True, on_epoch=True, reduce_fx="sum")
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        logged: Any = self.trainer._logger_connector
        self.seen.append((logged._first_loop_iter, logged.metrics["log"]["train/sum_step"].item()))

    def on_validation_start(self) -> None:
        validation: Any = self.trainer.fit_loop.epoch_loop.val_loop
        self.seen.append(validation._module_mode.mode["layer"])


def test_sums_of_an_epoch_and_modes_are_kept_where_they_were(trainer: pl.Trainer) -> None:
    """training/loop.py: ``step_metrics``, ``epoch_sums``, ``continue_epoch``, ``module_modes``"""
    model = LogsSums()
    trainer.fit(model)
    assert model.seen == [True, (True, 1.0), (False, 1.0)]  # validation's sanity check comes first
    metric = trainer.fit_loop.epoch_loop._results["training_step.train/sum"]
    assert metric.meta.name == "train/sum" and metric._defaults.keys() >= {"value"}
    assert trainer._logger_connector._callback_metrics["train/sum"] == 2.0


def test_metrics_keep_the_reduction_of_each_state() -> None:
    """training/metrics.py: ``check_sums``, ``check_states``"""
    metric = torchmetrics.MeanMetric()
    assert metric._reductions == {"mean_value": dim_zero_sum, "weight": dim_zero_sum}
    assert metric._defaults.keys() == metric._reductions.keys()
    assert torchmetrics.CatMetric()._reductions == {"value": dim_zero_cat}


def test_functions_and_classes_in_tracebacks_have_their_names() -> None:
    """errors.py knows errors by the function that raised them, or by their class's name."""
    assert callable(_CheckpointConnector.restore_model)
    assert callable(multiprocessing.reduction.dump)
    assert MisconfigurationException.__name__ == "MisconfigurationException"
    assert torch.OutOfMemoryError.__name__ == "OutOfMemoryError"
    assert "_interrupt(trainer" in inspect.getsource(call._call_and_handle_interrupt)


def test_a_data_hook_of_an_instance_is_the_classes_to_lightning() -> None:
    data = loaders.Loaders(1).resumable(pl.LightningDataModule())
    assert not is_overridden("train_dataloader", data)


def test_the_sharded_strategy_overrides_existing_methods() -> None:
    """cluster/sharding.py replaces Lightning's own sharded checkpoints."""
    overridden = (
        "load_checkpoint", "load_model_state_dict", "load_optimizer_state_dict",
        "lightning_module_state_dict", "lightning_restore_optimizer", "optimizer_state",
        "restore_checkpoint_after_setup", "setup",
    )  # fmt: skip
    for name in overridden:
        assert name in vars(ModelParallelStrategy) and name in vars(ShardedStrategy), name
    setup = inspect.getsource(ModelParallelStrategy.setup)
    assert setup.index("convert_module") < setup.index("setup_optimizers")
    run = inspect.getsource(pl.Trainer._run)
    assert run.index("_call_configure_model") < run.index("_restore_modules_and_callbacks")


def test_the_state_is_what_save_checkpoint_writes() -> None:
    """training/loop.py: ``state``"""
    save = inspect.getsource(pl.Trainer.save_checkpoint)
    assert "checkpoint = self._checkpoint_connector.dump_checkpoint(weights_only)" in save


def test_strategies_keep_the_timeout_of_the_group() -> None:
    """cluster/strategies.py: ``ConnectsRanks``"""
    timeout = timedelta(seconds=7)
    for strategy in (DDPStrategy, ModelParallelStrategy):
        assert strategy(timeout=timeout)._timeout == timeout


def test_weight_averaging_knows_whether_it_has_averaged() -> None:
    """checkpoints/unsupported.py: ``start_averages``"""
    averaging = WeightAveraging()
    assert averaging._average_model is None
    averaging.setup(pl.Trainer(accelerator="cpu", logger=False), BoringModel(), "fit")
    assert averaging._average_model.n_averaged == 0


def test_weights_are_restored_before_callbacks_and_loops() -> None:
    """checkpoints/callback.py compares the weights first; callbacks prepare the loops."""
    restore = inspect.getsource(_CheckpointConnector._restore_modules_and_callbacks)
    assert restore.index("resume_start") < restore.index("restore_model")
    assert restore.index("restore_model") < restore.index("restore_callbacks")
    source = inspect.getsource(_CheckpointConnector.restore_training_state)
    assert "restore_loops" in source and "restore_callbacks" not in source
