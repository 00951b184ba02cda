"""A signal stops a run in order; Lightning's own way is replaced, and an upgrade that changes it fails here, loudly."""

import inspect
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytorch_lightning import Trainer
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.trainer.connectors import signal_connector

import small
import train
from runtime import checkpoint_files, signals

SRC = Path(train.__file__).parent
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


def test_what_is_replaced_is_where_it_was() -> None:
    """If this fails, Lightning changed: read it again, and mend signals.replace_lightning_signal_handlers."""
    advance = inspect.getsource(_TrainingEpochLoop.advance)
    assert advance.count("self._broadcast_sigterm_tensor()") == 1
    collectives = set(re.findall(r"torch\.distributed\.(\w+)", advance)) - {"is_available", "is_initialized"}
    assert not collectives, "a collective in every step that nobody replaced"
    assert Trainer._run.__code__.co_names.count("register_signal_handlers") == 1
    handlers = inspect.getsource(signal_connector._SignalConnector.register_signal_handlers)
    assert "_sigterm_notifier_fn" in handlers
    methods = {name: f for name, f in vars(signal_connector._SignalConnector).items() if inspect.isfunction(f)}
    users = {name for name, method in methods.items() if "self._register_signal(" in inspect.getsource(method)}
    assert users == {"register_signal_handlers", "teardown"}


def test_taking_over_leaves_no_handler_and_no_broadcast() -> None:
    trainer = Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signals.replace_lightning_signal_handlers(trainer)
    trainer._signal_connector.register_signal_handlers()
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor()
    trainer._signal_connector.teardown()
    assert before == {number: signal.getsignal(number) for number in before}


def test_a_lightning_without_those_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Lightning changed: SimpleNamespace has no register_signal_handlers"):
        signals.replace_lightning_signal_handlers(
            SimpleNamespace(_signal_connector=SimpleNamespace(), fit_loop=SimpleNamespace(epoch_loop=None))
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_says_how_to_go_on_and_ends_with_143(tmp_path: Path, number: signal.Signals) -> None:
    options = {**small.options(tmp_path), "epochs": 300, "log_every": 5}
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(SRC / "train.py"), *pairs]
    with Path("log").open("w") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log)
    while "step=5 " not in Path("log").read_text() and run.poll() is None:
        time.sleep(0.1)
    run.send_signal(number)
    asked = time.monotonic()
    assert run.wait(20) == 143
    assert time.monotonic() - asked < 10
    last = Path("log").read_text().splitlines()[-1]
    said = re.fullmatch(rf"stopped by {number.name} at step (\d+) of \d+; start the same command .* to resume", last)
    assert said, last
    path = checkpoint_files.newest(Path("outputs/checkpoints"))
    assert path and f"-step{int(said[1]):06d}-" in path.name


def python(code: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)  # type: ignore[call-overload]
    assert run.stdout.readline() == "ready\n"
    return run


def test_a_second_signal_ends_at_once() -> None:
    busy = (
        "from runtime import signals; import time; signals.install(); signals.defer('go on'); "
        "print('ready', flush=True); time.sleep(60)"
    )
    run = python(busy)
    run.send_signal(signal.SIGINT)
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)  # the same one: a terminal and torchrun's agent both pass Ctrl-C on
    time.sleep(signals.SAME + 0.2)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait(2) == 143
    assert run.communicate()[1] == "ended by a second signal; go on\n"


def test_native_code_that_does_not_return_is_ended() -> None:
    """The handler of Python never runs here: the main thread waits in C, as in the ranks' meeting."""
    code = (
        "from runtime import signals; import threading, ctypes; signals.install(); print('ready', flush=True); "
        "ctypes.CDLL(None).pause(); ctypes.CDLL(None).sleep(60)"
    )
    run = python(code)
    time.sleep(0.2)
    run.send_signal(signal.SIGTERM)
    assert run.wait(signals.GRACE + 3) == 143
    assert "nothing was trained yet: start the same command again" in run.communicate()[1]
