"""What is random in a step is a function of (seed, step, rank), not of the steps before it; and so is what DDP adds up.

A run that is resumed in the middle of an epoch draws what it would have drawn, and adds in the same order.
"""

import random
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.nn.parallel import DistributedDataParallel

from runtime import ranks


class StepSeed(pl.Callback):
    """Seeds what is drawn in a step (dropout, say), and keeps DDP's order of adding up for a run that resumes.

    Before each batch is fetched, torch's, numpy's and Python's generators are seeded, for augmentation in this process;
    before it is trained on, torch's once more. A step is a batch of a rank: each that is accumulated has numbers of its
    own.

    DDP rearranges its buckets once, after the first step, in the order in which that step finished the gradients, so
    that a bucket is sent while the rest is computed. A number's place in a bucket decides in which order a ring of
    ranks adds it up: a resumed run needs that arrangement in its first step. Without it 4 ranks differed by 1e-5.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.order: list[int] = []  # the parameters that are trained, as the first step finished their gradients
        self.batches = self.epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order, self.epoch = state_dict["order"], state_dict["epoch"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """An ordinary loader that shuffles draws its order when its iterator is made: next, for the first epoch."""
        self._seed(trainer, -1 - self.epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epoch = trainer.current_epoch + 1  # for the checkpoint that is made now
        self._seed(trainer, -1 - self.epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.fit_loop.epoch_loop.batch_idx >= 0:  # within an epoch; at its start the loader draws its order next
            self._seed(trainer, trainer.fit_loop.epoch_loop.total_batch_idx + 1)
        self.batches, self.hooks, self.buffers = 0, [], [buffer.clone() for buffer in pl_module.buffers()]
        if isinstance(trainer.strategy.model, DistributedDataParallel):
            trained = [p for p in pl_module.parameters() if p.requires_grad]
            if sorted(self.order) == list(range(len(trained))):
                prebuild_ddp_buckets(trainer.strategy.model, [trained[i] for i in self.order])
            else:
                self.order = []
                for i, parameter in enumerate(trained):
                    hook = parameter.register_post_accumulate_grad_hook(lambda _, i=i: self.order.append(i))
                    self.hooks.append(hook)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.batches += 1
        if self.batches == 2:
            self._after_first_batch(trainer, pl_module)
        self._seed(trainer, trainer.fit_loop.epoch_loop.total_batch_idx, fetching=False)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self._seed(trainer, trainer.fit_loop.epoch_loop.total_batch_idx + 1)

    on_validation_end = on_train_batch_end  # its loaders drew in between

    def _seed(self, trainer: pl.Trainer, index: int, fetching: bool = True) -> None:
        number = ((self.seed * 1_000_003 + index) * 65_537 + trainer.global_rank + 32_768 * fetching) % 2**63
        torch.default_generator.manual_seed(number)
        if fetching:
            random.seed(number % 2**32)  # a longer number takes longer
            np.random.seed(number % 2**32)
        elif trainer.strategy.root_device.type == "cuda":  # torch.manual_seed takes up to 1 ms for kinds not in use
            torch.cuda.manual_seed(number)

    def _after_first_batch(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop recording; have DDP broadcast buffers at each step only if they change, as a BatchNorm's do."""
        for hook in self.hooks:
            hook.remove()
        if isinstance(trainer.strategy.model, DistributedDataParallel):
            same = [torch.equal(old, new) for old, new in zip(self.buffers, pl_module.buffers(), strict=True)]
            running = any(getattr(module, "track_running_stats", False) for module in pl_module.modules())
            trainer.strategy.model.broadcast_buffers = ranks.any_rank(running or not all(same))
        self.hooks, self.buffers = [], []


def prebuild_ddp_buckets(ddp: DistributedDataParallel, order: list[torch.nn.Parameter]) -> None:
    """Let DDP arrange its gradient buckets now, by a backward pass of zeros that finishes gradients in this order."""
    module = ddp.module
    zeros = [(p * 0).sum() for p in reversed(order)]  # autograd goes from the last that was made to the first
    vars(module)["forward"] = lambda _: torch.stack(zeros).sum()
    try:
        ddp(None).backward()  # an argument: with device_ids, as on GPUs, DDP takes the first of those that it moved
    finally:
        del vars(module)["forward"]
    module.zero_grad()
