"""Masks of attention: made once for all layers, and without a wait for the device."""

from typing import Any

import torch


def document_mask(position_ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Which token sees which where each row holds documents: the earlier ones of its own.

    (B, L) numbers of the tokens in their documents → (B, 1, L, L): 0 where a token is seen, else
    -inf. The type is that in which layers compute with ``x``, so that all of them keep this one
    mask. Given bools, scaled_dot_product_attention makes such a mask in each layer, and keeps it
    for the backward pass (ATen/native/transformers/attention.cpp, ``convert_boolean_attn_mask``).
    """
    document = (position_ids == 0).cumsum(1)
    seen = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    return _additive(seen, x.dtype)


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where ``seen``, else -inf, as layers add it, whose weights or inputs are of ``dtype``."""
    kind = seen.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, -torch.inf)


def keep_transformers_from_waiting() -> None:
    """Make transformers' masks without a look at their values, for which a GPU is waited for.

    transformers 5.17 looks twice in each forward pass whether it could do without a mask: whether
    nothing is padded (masking_utils.py, ``sdpa_mask``), and whether each row is one document
    (``find_packed_sequence_indices``).
    """
    from transformers import masking_utils

    masking_utils.AttentionMaskInterface.register("sdpa", _sdpa_mask)
    masking_utils.find_packed_sequence_indices = _documents


def _sdpa_mask(
    *,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **arguments: Any,
) -> torch.Tensor | None:
    """``sdpa_mask`` of transformers, which does without a mask only if no padding is given.

    One of documents or windows is added by the layers, as that of `document_mask` is.
    """
    from transformers.masking_utils import sdpa_mask

    unpadded = attention_mask is None
    mask = sdpa_mask(
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip and unpadded,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and unpadded,
        **arguments,
    )
    return _additive(mask, arguments["dtype"]) if unpadded and mask is not None else mask


def _documents(position_ids: torch.Tensor) -> torch.Tensor:
    """(B, L) positions → the number of each token's document in its row, from 0."""
    jumps = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1
    return jumps.cumsum(-1)
