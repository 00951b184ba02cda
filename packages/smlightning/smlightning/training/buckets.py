"""Keeps DDP's gradient buckets in the same order in a resumed run.

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


class BucketOrder(pl.Callback):
    """Records the order in which the first step finishes gradients, and gives it to DDP in a
    resumed run.
    """

    def __init__(self) -> None:
        self.order: list[int] = []  # numbers of the trained parameters, first finished first
        self.batches = 0  # of this run
        self.hooks: list[RemovableHandle] = []

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order = state_dict["order"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.batches = 0
        ddp = trainer.strategy.model
        if not isinstance(ddp, DistributedDataParallel):
            return
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
        self.hooks = []

    def _record(self, number: int, parameter: torch.Tensor) -> None:
        self.order.append(number)


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
