"""The loss of each token of a language model, with little memory for many tokens."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NUMBERS = 2**25  # logits in float32 at a time: 128 MiB


def token_losses(logits: torch.Tensor, labels: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    """(B, L, tokens) logits, (B, L) labels → (B, L) cross-entropies, 0 where a label is ignored.

    They are computed in float32. Of more than NUMBERS logits, some rows are computed at a time, and
    again in the backward pass: the logits are kept once, in their own type. (As (B, tokens, L), in
    which ``cross_entropy`` takes them, a GPU would copy them: SoftMax.cu, ``contiguous``.)
    """
    rows = max(1, NUMBERS // logits.shape[-1])
    pieces = zip(logits.flatten(0, 1).split(rows), labels.flatten().split(rows), strict=True)
    compute: Callable[..., torch.Tensor] = _losses
    if labels.numel() > rows:
        again: dict[str, Any] = {
            "use_reentrant": False,
            "preserve_rng_state": False,
        }  # nothing is random
        compute = functools.partial(checkpoint, _losses, **again)
    losses = [compute(*piece, ignored) for piece in pieces]
    return torch.cat(losses).view_as(labels)


def _losses(logits: torch.Tensor, labels: torch.Tensor, ignored: int) -> torch.Tensor:
    return F.cross_entropy(logits.float(), labels, ignore_index=ignored, reduction="none")
