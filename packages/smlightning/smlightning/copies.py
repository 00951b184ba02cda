"""Copies of a model in main memory, on which nothing that is tried reaches the model itself."""

import copy
from collections.abc import Iterator
from typing import Any

import torch


def tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers, each once."""
    yield from model.parameters()
    yield from model.buffers()


def copied(model: Any, *, one_number: bool = False) -> Any:
    """A copy of a LightningModule with the same Trainer, in main memory.

    Its tensors share memory as the model's do, which ``Parameter.__deepcopy__`` (torch 2.13) does
    not keep. The data module is not copied.

    Args:
        one_number: keep the first number of each tensor only, and its number of dimensions.

    Raises:
        Exception: any that the model's attributes raise.
    """
    trainer: Any = model.trainer
    data = trainer.datamodule
    memo: dict[int, Any] = {id(data): data}
    for tensor in tensors(model):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
            continue
        value = tensor.detach()
        if one_number:
            value = value[(slice(1),) * value.dim()].clone()
        new = copy.deepcopy(value.cpu(), memo)
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, tensor.requires_grad)
        memo[id(tensor)] = new
    made = copy.deepcopy(model, memo)
    made.trainer = trainer
    return made
