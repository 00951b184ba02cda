"""Attention masks: one for all layers, made without waiting for the device."""

from typing import Any

import torch


def document_mask(position_ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The mask with which a token sees only itself and earlier tokens of its document.

    (B, L) positions of the tokens in their documents → (B, 1, L, L): 0 for a visible token, else
    -inf, in the type in which layers compute with ``x``. All layers then keep the same mask. From a
    mask of bools, scaled_dot_product_attention makes a mask of numbers in each layer and keeps it
    for the backward pass (ATen/native/transformers/attention.cpp, ``convert_boolean_attn_mask``).
    """
    document = (position_ids == 0).cumsum(1)
    seen = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    return _additive(seen, x.dtype)


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where ``seen``, else -inf, in the type in which layers of ``dtype`` compute."""
    kind = seen.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, -torch.inf)


def keep_transformers_from_waiting() -> None:
    """Keep transformers from reading a mask's values, which would wait for the GPU.

    transformers 5.17 reads them twice in each forward pass, to leave the mask out if nothing is
    padded (masking_utils.py, ``sdpa_mask``) or each row is one document
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
    """``sdpa_mask`` of transformers, but leaves the mask out only if there is no padding mask.

    A mask of documents or windows becomes numbers, as in `document_mask`.
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
