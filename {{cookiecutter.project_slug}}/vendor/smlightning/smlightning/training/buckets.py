"""Keeps DDP's gradient buckets in the same order in a resumed run; broadcasts buffers that change.

DDP rearranges its buckets once, after the first step, in the order in which that step finished the
gradients, so that a bucket is sent while the rest is computed. A number's place in a bucket decides
the order in which a ring of ranks adds it up: a resumed run needs that arrangement in its first
step. Without it 4 ranks differed by 1e-5.
"""

from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from smlightning.cluster import collectives


class BucketOrder(pl.Callback):
    """Records the order in which the first step finishes gradients, and gives it to DDP in a
    resumed run.

    After the first step it also has DDP broadcast buffers only if they change, as a BatchNorm's do.
    """

    def __init__(self) -> None:
        self.order: list[int] = []  # numbers of the trained parameters, first finished first
        self.batches = 0  # of this run
        self.hooks: list[RemovableHandle] = []
        self.buffers: list[torch.Tensor] = []  # as they were before the first step

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order = state_dict["order"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.batches = 0
        ddp = trainer.strategy.model
        if not isinstance(ddp, DistributedDataParallel):
            return
        self.buffers = [buffer.clone() for buffer in pl_module.buffers()]
        trained = [p for p in pl_module.parameters() if p.requires_grad]
        if sorted(self.order) == list(range(len(trained))):
            prebuild_buckets(ddp, [trained[number] for number in self.order])
            return
        self.order = []
        for number, parameter in enumerate(trained):
            record = partial(self._record, number)
            self.hooks.append(parameter.register_post_accumulate_grad_hook(record))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batches += 1
        if self.batches != 2:
            return
        for hook in self.hooks:
            hook.remove()
        ddp = trainer.strategy.model
        if isinstance(ddp, DistributedDataParallel):
            changing = _tracks_statistics(pl_module) or not self._buffers_are_as_before(pl_module)
            ddp.broadcast_buffers = collectives.any_rank(changing)
        self.hooks, self.buffers = [], []

    def _record(self, number: int, parameter: torch.Tensor) -> None:
        self.order.append(number)

    def _buffers_are_as_before(self, module: torch.nn.Module) -> bool:
        buffers = list(module.buffers())
        return len(buffers) == len(self.buffers) and all(map(torch.equal, self.buffers, buffers))


def _tracks_statistics(module: torch.nn.Module) -> bool:
    """Whether any part keeps running statistics, even if evaluation mode holds them still."""
    return any(getattr(part, "track_running_stats", False) for part in module.modules())


def prebuild_buckets(ddp: DistributedDataParallel, order: list[torch.nn.Parameter]) -> None:
    """Let DDP arrange its gradient buckets now, by a backward pass of zeros that finishes gradients
    in this order.
    """
    module = ddp.module
    # autograd visits the last of them first
    zeros = [(parameter * 0).sum() for parameter in reversed(order)]
    vars(module)["forward"] = lambda _: torch.stack(zeros).sum()
    try:
        # an argument: with device_ids, as on GPUs, DDP takes the first of those that it moved
        ddp(None).backward()
    finally:
        del vars(module)["forward"]
    module.zero_grad()
