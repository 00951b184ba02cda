"""What is random in a step is a function of (seed, step, rank), not of the steps before it; and so is what DDP adds up.

A run that is resumed in the middle of an epoch draws what it would have drawn, and adds in the same order.
"""

from typing import Any

import pytorch_lightning as pl
import torch


class StepSeed(pl.Callback):
    """Makes what is drawn in a step (dropout, say) a function of (seed, step, rank), not of the steps before it.

    So a run that is resumed in the middle of an epoch draws what it would have drawn, and adds in the same order.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if isinstance(trainer.strategy.model, torch.nn.parallel.DistributedDataParallel):
            prebuild_ddp_buckets(trainer.strategy.model)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        micro_step = trainer.fit_loop.epoch_loop.total_batch_idx  # counts what accumulation does not step for
        number = ((self.seed * 1_000_003 + micro_step) * 65_537 + trainer.global_rank) % 2**63
        if trainer.strategy.root_device.type == "cpu":
            torch.default_generator.manual_seed(number)
        else:  # where there is no GPU this formats a stack for its seeding later on: 1 ms a step
            torch.manual_seed(number)


def prebuild_ddp_buckets(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """Let DDP arrange its gradient buckets now, not after the first step.

    It rearranges them once, in the order in which the first backward pass finishes gradients, and a number's place in
    a bucket decides in which order a ring of ranks adds it up. A resumed run would take its first step in the first
    arrangement where the uninterrupted one had long left it: 4 ranks differed by 1e-5 after 45 steps. So a backward
    pass of zeros comes first, which finishes gradients last parameter first, as a network's does.
    """
    module = ddp.module
    trained = [p for p in module.parameters() if p.requires_grad]
    vars(module)["forward"] = lambda: torch.stack([(p * 0).sum() for p in trained]).sum()
    try:
        ddp().backward()
    finally:
        del vars(module)["forward"]
    module.zero_grad()
