"""AdamW with warm-up and cosine decay; clipping of gradients."""

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def clip_gradients(
    parameters: Iterable[nn.Parameter], value: float | None, algorithm: str | None = None
) -> None:
    """Clip by the global norm, or each number if the algorithm is ``value``.

    Lightning's own method rejects fused AdamW under bf16 (#21435). The norm is computed in float32:
    with DDP and FSDP it differs in the last digits, and so do the weights.
    """
    if value and algorithm == "value":
        torch.nn.utils.clip_grad_value_(parameters, value)
    elif value:
        torch.nn.utils.clip_grad_norm_(parameters, value)


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
    fused = trainer.precision != "16-mixed"
    optimizer = torch.optim.AdamW(groups, lr=lr, fused=fused)
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
