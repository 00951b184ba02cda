"""AdamW with warm-up and cosine decay."""

import functools
import math
from typing import Any

import torch
from torch import nn


def adamw_with_cosine(
    trainer: Any, network: nn.Module, lr: float, weight_decay: float, warmup_ratio: float
) -> dict[str, Any]:
    """The optimizer and the schedule that ``configure_optimizers`` returns.

    The learning rate rises to ``lr`` in ``warmup_ratio`` of all steps, then falls to 0 along half
    a cosine. Only matrices have weight decay, biases and norms have none.
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # Fused kernels unscale gradients themselves, too late for clipping under a gradient scaler.
    # Without one they unscale nothing, but Lightning would still reject clipping (#21435).
    fused = trainer.precision != "16-mixed"
    optimizer: Any = torch.optim.AdamW(groups, lr=lr, fused=fused)
    optimizer._step_supports_amp_scaling = False
    total = max(int(trainer.estimated_stepping_batches), 1)
    warmup = max(round(total * warmup_ratio), 1)
    factor = functools.partial(warmup_then_cosine, warmup=warmup, total=total)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def warmup_then_cosine(step: int, warmup: int, total: int) -> float:
    """The factor of the learning rate: up to 1 in ``warmup`` steps, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
