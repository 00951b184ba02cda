"""Masks that all layers share, and transformers' without a look at their values."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from smlightning.attention import document_mask, keep_transformers_from_waiting
from waits import Waits

POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_numbers_equals_a_mask_of_bools(dtype: torch.dtype) -> None:
    query, key, value = torch.randn(3, 2, 4, 6, 8, dtype=dtype).unbind()
    mask = document_mask(POSITIONS, query)
    seen = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    for row, starts in enumerate(([0, 0, 0, 3, 3, 5], [0] * 6)):
        for place, start in enumerate(starts):
            seen[row, 0, place, start : place + 1] = True
    assert mask.dtype == dtype and torch.equal(mask == 0, seen)
    given = F.scaled_dot_product_attention(query, key, value, seen)
    assert torch.equal(F.scaled_dot_product_attention(query, key, value, mask), given)


def network(kind: str) -> Any:
    import transformers

    keep_transformers_from_waiting()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 9}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 32, "pad_token_id": 0}
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    if kind == "mistral":
        config: Any = transformers.MistralConfig(**sizes, num_key_value_heads=1, sliding_window=3)
        return transformers.MistralModel(config).eval()
    return transformers.LlamaModel(transformers.LlamaConfig(**sizes)).eval()


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_packed_documents_give_the_numbers_of_single_ones_without_a_wait(kind: str) -> None:
    net, ids = network(kind), torch.randint(1, 9, POSITIONS.shape)
    with Waits() as waits:
        together = net(ids, position_ids=POSITIONS, use_cache=False).last_hidden_state
    assert not waits.names
    for row, start, stop in ((0, 0, 3), (0, 3, 5), (0, 5, 6), (1, 0, 6)):
        alone = net(ids[row : row + 1, start:stop], use_cache=False).last_hidden_state
        torch.testing.assert_close(together[row : row + 1, start:stop], alone)


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("padded", [0, 2])
def test_padding_needs_no_wait_and_changes_nothing(kind: str, padded: int) -> None:
    net, ids = network(kind), torch.randint(1, 9, (2, 6))
    mask = torch.ones_like(ids)
    mask[0, 6 - padded :] = 0
    with Waits() as waits:
        together = net(ids, attention_mask=mask).last_hidden_state
    assert not waits.names
    alone = net(ids[:1, : 6 - padded]).last_hidden_state
    torch.testing.assert_close(together[:1, : 6 - padded], alone)
