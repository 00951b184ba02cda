"""Private parts of Lightning, torch and transformers on which the package relies are unchanged.

If a test fails after an upgrade, read that part of the library again, and adapt the module of the
package in the test's docstring.
"""

import inspect
import re
import signal
from datetime import timedelta

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.trainer.connectors import data_connector
from pytorch_lightning.trainer.connectors.checkpoint_connector import _CheckpointConnector
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from pytorch_lightning.utilities.model_helpers import is_overridden

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
    assert loop._restarting is False and loop._data_fetcher is None
    assert loop.epoch_loop._batches_that_stepped == 0
    assert callable(loop.epoch_loop._should_check_val_fx)
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
