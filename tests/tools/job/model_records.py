"""Networks made from configurations, and what torch records of a training step of them on a CPU.

benchmarks/estimate.py prints the errors of the estimates that the tests bound.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from smlightning.outline import outline
from smlightning_sagemaker.estimate import counting
from smlightning_sagemaker.estimate.sizes import Linear

BERT = {"model_type": "bert", "attention_probs_dropout_prob": 0.0}
GPT2 = {"model_type": "gpt2", "attn_pdrop": 0.0}
LLAMA = {"model_type": "llama"}
TINY: dict[str, dict[str, Any]] = {
    "BERT, tiny": {
        **BERT, "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 512,
    },
    "GPT-2, tiny": {
        **GPT2, "vocab_size": 1000, "n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 256,
    },
    "Llama, tiny": {
        **LLAMA, "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 352,
    },
}  # fmt: skip
MEDIUM: dict[str, dict[str, Any]] = {
    "BERT, base": {
        **BERT, "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072,
    },
    "GPT-2, small": {
        **GPT2, "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
    },
    "Llama, 400 M": {
        **LLAMA, "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816,
    },
}  # fmt: skip
LABELS = 3


def labels(config: dict[str, Any]) -> int:
    """BERT classifies, the others predict the next token."""
    return LABELS if config["model_type"] == "bert" else 0


def network(config: dict[str, Any]) -> Any:
    """A fresh network of transformers, in training mode, on torch's default device."""
    import transformers as library

    kind = {"bert": "Bert", "gpt2": "GPT2", "llama": "Llama"}[config["model_type"]]
    members = {name: value for name, value in config.items() if name != "model_type"}
    made = getattr(library, f"{kind}Config")(**members, num_labels=LABELS, pad_token_id=0)
    is_classifier = bool(labels(config))
    auto = "AutoModelForSequenceClassification" if is_classifier else "AutoModelForCausalLM"
    return getattr(library, auto).from_config(made).train()


def batch(config: dict[str, Any], rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, config["vocab_size"], (rows, length))
    return {"input_ids": ids, "target": ids.clone() if not labels(config) else ids[:, 0] % LABELS}


def loss(net: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss as both examples compute it."""
    options = {} if inputs["target"].ndim == 1 else {"use_cache": False}
    logits = net(input_ids=inputs["input_ids"], **options).logits.float()
    predicted = logits.transpose(1, 2) if logits.ndim == 3 else logits
    return F.cross_entropy(predicted, inputs["target"])


def recorded(compute: Callable[[], torch.Tensor], kept: Iterable[torch.Tensor]) -> int:
    """Bytes that autograd saves for the backward pass, by torch's own hooks; an alias counts once.

    Args:
        kept: tensors that are there anyhow: weights and the batch.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in kept}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    total = sum(storage.nbytes() for storage in saved.values())
    del result
    return total


def activations(
    make: Callable[[], nn.Module],
    inputs: Callable[[int], dict[str, torch.Tensor]],
    compute: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor],
    rows: int,
) -> tuple[int, int]:
    """Activations that torch records at ``rows`` samples, and the estimate from fewer samples.

    Args:
        make: a network on torch's default device.
        inputs: a batch of so many samples.
        compute: the loss of a network and a batch.
        rows: samples, a multiple of four.
    """
    net = make()
    given = inputs(rows)
    record = recorded(lambda: compute(net, given), [*net.parameters(), *given.values()])
    return record, counted(make, inputs, compute, rows // 4).at(rows)


def counted(
    make: Callable[[], nn.Module],
    inputs: Callable[[int], dict[str, torch.Tensor]],
    compute: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor],
    rows: int,
) -> Linear:
    """The estimate of `counting`: the network without values, at two batch sizes."""
    with outline():
        net = make()
    found = []
    with counting.without_numbers(net), counting.fused_attentions():
        for size in (rows, 2 * rows):
            given = counting.of_size(inputs(1), 1, size, 0)
            net.zero_grad()
            kept = [*net.parameters(), *net.buffers(), *given.values()]
            found.append(counting.step(lambda given=given: compute(net, given), kept)[0])
    return counting.line(rows, *found)
