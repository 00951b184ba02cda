"""Runs of train.py on a rank for the tests of sharded training, and a record of its memory."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

import model
import train
from small_training import Crash
from smlightning.checkpoints import files
from smlightning.checkpoints.callback import Checkpoints
from smlightning.cluster import fsdp2
from smlightning.errors import UserError
from smlightning.reports import curves
from smlightning_sagemaker.testing.recording import close_unseen

Write = Callable[[dict[str, Any]], Any]


class Seen(dict):
    """What one process saw, which no checkpoint holds."""


class Recorder(pl.Callback):
    """Notes losses, and how much of weights and optimizer state this rank holds."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = Seen(losses={})

    def state_dict(self) -> dict[str, Any]:
        """Nothing: each process notes its own steps."""
        return {}

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # the mean over the ranks, as DDP and FSDP average gradients
        loss = trainer.strategy.reduce(outputs["loss"].detach(), reduce_op="sum")
        self.seen["losses"][trainer.global_step] = float(loss) / trainer.world_size

        self._count(trainer, module)

    def _count(self, trainer: Any, module: Any) -> None:
        state = trainer.optimizers[0].state_dict()["state"].values()
        kept = [*module.state_dict().values(), *(t for entry in state for t in entry.values())]
        tensors = [tensor for tensor in kept if torch.is_tensor(tensor) and tensor.ndim]
        self.seen["elements"] = sum(tensor.numel() for tensor in tensors)
        self.seen["held"] = sum(local(tensor).numel() for tensor in tensors)
        self.seen["parameters"] = sum(tensor.numel() for tensor in module.parameters())


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def record_memory(seen: dict[str, Any]) -> None:
    """Record how many parameters lie in memory before they are divided."""
    shard = fsdp2.shard

    def recorded_shard(module: Any, *args: Any) -> None:
        seen["built"] = sum(p.numel() for p in module.parameters() if not p.is_meta)
        shard(module, *args)

    fsdp2.shard = recorded_shard


def build_on_meta() -> None:
    """Build the network without memory for its weights, which rank 0 sends."""
    build = model.build

    def on_meta(*args: Any) -> Any:
        with torch.device("meta"):
            return build(*args)

    model.build = on_meta


def write_half(write: Callable, kill_at: int, directory: Path, stem: str, *args: Any) -> Path:
    if stem == f"{kill_at:06d}-00001-of-00002":
        (directory / ".half.shard").write_bytes(b"half")
        os.kill(int(Path("../rank-0.pid").read_text()), signal.SIGKILL)  # as a launcher then does
        os.kill(os.getpid(), signal.SIGKILL)
    return write(directory, stem, *args)


def run(
    write: Write,
    options: dict[str, Any],
    crash_at: int = 0,
    dropout: bool = True,
    hosts: bool = False,
    kill_at: int = 0,
) -> None:
    """Run src/train.py; at that step it ends when its checkpoint is written.

    With ``hosts`` each rank is on a host of its own, with a disk of its own. At ``kill_at`` rank 1
    is killed when half of its shard of that number is written, and rank 0 with it.
    """
    if kill_at and os.environ["RANK"] == "1":
        files.write_file = partial(write_half, files.write_file, kill_at)
    elif kill_at:
        Path("rank-0.pid").write_text(str(os.getpid()))
    disk = Path()
    if hosts:
        rank = os.environ["RANK"]
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        disk = Path(f"host{rank}")
        disk.mkdir(exist_ok=True)
    if options.get("strategy") == "fsdp" and os.environ.get("RANK", "0") != "0":
        build_on_meta()
    recorder = Recorder()
    record_memory(recorder.seen)
    trainer, before_batch, take = pl.Trainer, Checkpoints.before_batch, Checkpoints._take

    class RecordedTrainer(trainer):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, callbacks: Any = None, **more: Any) -> None:
            super().__init__(*args, callbacks=[*(callbacks or []), recorder], **more)

    def waiting_take(self: Checkpoints, trainer: Any, **how: bool) -> None:
        within_write = kill_at and trainer.global_step >= kill_at  # which will never end
        while self.writer.busy() and not within_write:
            time.sleep(0.01)  # or this checkpoint is left out, as on a slow disk
        take(self, trainer, **how)

    def crashing(self: Checkpoints, trainer: Any) -> None:
        before_batch(self, trainer)
        if crash_at and trainer.global_step == crash_at:
            self._wait_until_written()  # by every rank: one that left would end rank 0's write
            raise Crash

    pl.Trainer = RecordedTrainer  # type: ignore[misc]
    Checkpoints.before_batch = crashing  # type: ignore[method-assign]
    Checkpoints._take = waiting_take  # type: ignore[method-assign]
    curves.save_figure = close_unseen
    if not dropout:
        torch.nn.Dropout.forward = lambda self, x: x  # type: ignore[method-assign]
    with contextlib.suppress(Crash), contextlib.chdir(disk):
        try:
            train.train(train.Options(**options))
        except UserError:
            if not crash_at:  # else another rank ended first
                raise
    write(recorder.seen)
