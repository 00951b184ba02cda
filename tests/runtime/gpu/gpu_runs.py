"""Runs of these tests on a rank with a simulated GPU, and their records."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pretended
import pytorch_lightning as pl
import torch

import checkout
from smlightning.cluster import ending, signals, watch
from smlightning.reports import curves
from smlightning_sagemaker.testing import owner, recording
from smlightning_sagemaker.testing.processes import Record

Run = Callable[..., list[Record]]
Write = Callable[[dict[str, Any]], Any]
PROJECT = next(Path(__file__).parents[3].glob("{{*}}"))
STUBS = checkout.PACKAGES[1] / "smlightning_sagemaker/rehearsal/stubs"
FIRST_STEPS = 4  # in which the package compares the ranks' batches and buffers
LOG_EVERY = 2
INTERVAL = "_over_ranks"  # where a training may wait once per interval of the log
# Where it may wait otherwise: every 0.3 s; where a checkpoint is due, for the one before and for
# the user's attributes, not for the copy of the weights; and after the batches of a validation.
WAITS = (
    "agreement.py",
    "_wait_until_written",
    "_take",
    "attributes.py",
    "values.py",
    "keep_validated",
)


def findings(record: dict[str, Any]) -> list[str]:
    """Operations in a run that a real GPU or NCCL would reject or wait for; expected: none."""
    found = [f"{name} mixes devices: {place}" for name, place, _ in record["mixed"]]
    found += [f"{problem}: {place}" for problem, place, _ in record["collectives"]]
    found += [f"{name} in thread {thread}, whose GPU is 0" for name, thread, _ in record["threads"]]
    intervals = 0
    for phase, what, place, count in record["waits"]:
        if phase == "first steps" or any(name in place for name in WAITS):
            continue
        if phase == "step" and INTERVAL in place:
            intervals += count
        else:
            found.append(f"{what} in {count} of {phase}: {place}")
    if intervals > 2 * -(-record["steps"] // LOG_EVERY):
        found.append(f"{intervals} waits for the log in {record['steps']} steps")
    return found


class Phases(pl.Callback):
    """Notes under which part of a run each wait falls.

    A training step lasts to the next one's start, so the batch that is fetched for it is its own.
    """

    def __init__(self, machine: pretended.Machine, stop_at: int, fail_at: int) -> None:
        self.machine = machine
        self.stop_at = stop_at
        self.fail_at = fail_at
        self.counts = {"steps": 0, "validation batches": 0}

    def state_dict(self) -> dict[str, Any]:
        return {}  # the counts are of this process: a resumed run begins them anew

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.counts["steps"] += 1
        self.machine.phase = self._training()
        if self.stop_at and trainer.global_step >= self.stop_at:
            signals._state.requested = "SIGTERM"
            self.machine.phase = ""  # the last checkpoint may be waited for
        if self.fail_at and trainer.global_step == self.fail_at and trainer.is_global_zero:
            raise RuntimeError("rank 0 fails")

    def _training(self) -> str:
        return "step" if self.counts["steps"] > FIRST_STEPS else "first steps"

    def on_validation_batch_start(self, *_: Any) -> None:
        self.counts["validation batches"] += 1
        # A stopped run may end within a validation, and its last checkpoint may be waited for.
        self.machine.phase = "" if signals._state.requested else "validation batch"

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self.machine.phase = self._training() if trainer.training else ""

    def _end(self, *_: Any) -> None:
        self.machine.phase = ""

    on_validation_start: Any = _end
    on_validation_epoch_end: Any = _end
    on_train_epoch_end: Any = _end
    on_train_end: Any = _end
    on_exception: Any = _end  # a stop within validation


def train(
    write: Write,
    options: dict[str, Any],
    stop_at: int = 0,
    fail_at: int = 0,
    launcher: str = "torchrun",
) -> None:
    """Run train.py, then predict.py.

    Args:
        stop_at: the step at which it is told to stop; 0: never.
        fail_at: the step at which rank 0 raises an error; 0: never.
        launcher: torchrun or smddp.
    """
    if launcher == "smddp":
        start_as_smddp()
    machine = pretended.install(int(os.environ.get("WORLD_SIZE", 1)))
    project = owner.load()
    train_py: Any = project.train
    phases = Phases(machine, stop_at, fail_at)

    class ObservedTrainer(pl.Trainer):
        def __init__(self, *args: Any, callbacks: Any = None, **more: Any) -> None:
            super().__init__(*args, callbacks=[*(callbacks or []), phases], **more)

    pl.Trainer = ObservedTrainer  # type: ignore[misc]
    curves.save_figure = recording.close_unseen
    watch.GRACE = 30.0  # for what follows a stop here
    seen: dict[str, Any] = {"stopped": False, "error": ""}
    try:
        train_py.train(train_py.Options(**{**options, "log_every": LOG_EVERY}))
    except ending.Stopped:
        seen["stopped"] = True
    except Exception as error:
        if not fail_at:
            raise
        seen["error"] = str(error)
        seen["group is left"] = torch.distributed.is_initialized()
    if os.environ.get("RANK", "0") == "0" and Path("outputs/model/config.json").is_file():
        seen["predicted"] = predict(project)
    write({**machine.seen.as_record(), **phases.counts, **seen})


def start_as_smddp() -> None:
    """The variables of smddprun under mpirun, and its library as the rehearsal has it."""
    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    library = Path(f"library{rank}").resolve()
    library.mkdir()
    (library / "smdistributed").symlink_to(STUBS / "smdistributed")
    sys.path.insert(0, str(library))
    os.environ.update(
        OMPI_COMM_WORLD_RANK=rank,
        OMPI_COMM_WORLD_SIZE=world_size,
        OMPI_COMM_WORLD_LOCAL_RANK=rank,
        OMPI_COMM_WORLD_LOCAL_SIZE=world_size,
        SM_CURRENT_INSTANCE_TYPE="ml.p4d.24xlarge",
        SM_FRAMEWORK_PARAMS='{"sagemaker_distributed_dataparallel_enabled": true}',
    )


def predict(project: owner.Owner) -> str:
    """The kind of device on which predict.py's model lies, once it has answered."""
    loaded = project.predict.model_fn("outputs/model")
    assert project.predict.predict_fn(["alpha"], loaded)
    return str(next(loaded[0].parameters()).device.type)
