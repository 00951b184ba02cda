"""AdamW as networks of text and images are trained: warm-up, cosine decay, clipping by norm."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn


def clip_gradients(
    parameters: Iterable[nn.Parameter], value: float | None, algorithm: str | None = None
) -> None:
    """Clip by global norm, or each number where the algorithm is ``value``, as Lightning does.

    Lightning's own refuses fused AdamW under bf16 (#21435), and a norm by torch's
    ``clip_grad_norm_`` depends on how a gradient is divided: see :func:`gradient_norm`.
    """
    if not value:
        return
    if algorithm == "value":
        torch.nn.utils.clip_grad_value_(parameters, value)
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        # as torch's: 1e-6, and no look at the norm, for which a GPU would have to be waited for
        factor = (value / (gradient_norm(gradients) + 1e-6)).clamp(max=1.0)
        for _, parts in _lists(gradients):
            # A float32 even for bfloat16: a rounded factor would change the norm that it gives.
            dtype = torch.promote_types(parts[0].dtype, torch.float)
            torch._foreach_mul_(parts, factor.to(parts[0].device, dtype))


@torch.no_grad()
def gradient_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of all gradients together, a float64; collective where they are divided.

    In float32 the order of addition, and so how many ranks divide a gradient, shows in the norm:
    by 1e-7 of it, by 1e-4 where 6 million numbers are added one after the other, as on a CPU. Then
    every weight differs between DDP and FSDP, and AdamW makes as large as any other a difference of
    one whose gradients are nearly zero. Rounded to float32 this norm is the same for both.
    (``torch.nn.utils.get_total_norm`` adds up in the gradients' own type.)
    """
    total = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for mesh, parts in _lists(gradients):
        squares = _norms(parts).square().sum()
        if mesh is not None:  # of two dimensions the first is that of the replicas
            torch.distributed.all_reduce(squares, group=mesh.get_group(mesh.ndim - 1))
        total += squares.to(total.device)
    return total.sqrt()


def _lists(gradients: Iterable[Any]) -> Iterator[tuple[Any, list[torch.Tensor]]]:
    """This rank's parts of gradients in lists, each of one device and type, which a GPU takes in a
    few kernels; and the mesh that divides them, None for whole ones.
    """
    lists: dict[Any, list[torch.Tensor]] = {}
    for gradient in gradients:
        mesh = getattr(gradient, "device_mesh", None)
        part = gradient.detach() if mesh is None else gradient.to_local()
        real = torch.view_as_real(part) if part.is_complex() else part
        lists.setdefault((mesh, real.device, real.dtype), []).append(real)
    for (mesh, _, _), parts in lists.items():
        yield mesh, parts


def _norms(parts: list[torch.Tensor]) -> torch.Tensor:
    """The 2-norms of the parts, or of their pieces, in float64.

    A GPU's kernel adds up in float64 as it reads (ForeachReduceOp.cu). A CPU makes copies in it
    first: of pieces that its cache holds.
    """
    if parts[0].device.type == "cpu":
        parts = [piece for part in parts for piece in part.reshape(-1).split(2**16)]
    return torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float64))


def adamw_with_cosine(
    trainer: Any, network: nn.Module, lr: float, weight_decay: float, warmup_ratio: float
) -> dict[str, Any]:
    """What ``configure_optimizers`` returns.

    The learning rate rises to ``lr`` in ``warmup_ratio`` of all steps, then falls to 0 along half
    a cosine. Biases and norms do not decay, which would only harm them. What requires no gradient
    is left out.
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
