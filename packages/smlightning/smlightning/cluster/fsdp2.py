"""The calls of FSDP2: divide a network's parameters among the ranks, and gather them again.

Only `ShardedStrategy` imports this module, when it has parameters to divide: the images with
torch 2.5 have FSDP2 under a private name only.
"""

from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from smlightning.cluster.blocks import blocks, networks


def is_sharded(module: nn.Module) -> bool:
    """Whether `shard` has sharded this module."""
    return any(isinstance(part, FSDPModule) for part in module.modules())


def shard(module: nn.Module, mesh: Any, device: torch.device, bf16: bool = False) -> None:
    """Divide the parameters of every module in ``module`` among the mesh's ranks. Collective.

    Args:
        module: in main memory; except for rank 0, its tensors may be on the meta device.
        mesh: of one dimension, or of (replicas, shards).
        bf16: compute in bfloat16 and add gradients up in float32; weights stay in float32.
    """
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    send_buffers(module, device)
    for network in networks(module):
        for block in [*blocks(network), network]:
            send_parameters(block, device)
            fully_shard(block, mesh=mesh, mp_policy=policy)  # frees what other ranks have


def send_parameters(module: nn.Module, device: torch.device) -> None:
    """Give every rank rank 0's parameters, except those that are sharded. Collective."""
    sent: dict[nn.Parameter, nn.Parameter] = {}  # a tied one is sent once
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                continue
            if parameter not in sent:
                whole = _from_rank_0(parameter, device)
                sent[parameter] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            setattr(part, name, sent[parameter])


def send_buffers(module: nn.Module, device: torch.device) -> None:
    """Give every rank rank 0's buffers. Collective."""
    for part in module.modules():
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, _from_rank_0(buffer, device))


def _from_rank_0(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Rank 0's tensor, sent as bytes: NCCL knows no int16, and needs contiguous memory."""
    if tensor.is_meta:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    else:
        whole = tensor.detach().to(device).contiguous()
    torch.distributed.broadcast(whole.view(-1).view(torch.uint8), 0)
    return whole


def reshard(module: nn.Module) -> None:
    """Free what was gathered: after a forward pass without backward the network still is."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def gather(module: nn.Module) -> None:
    """Give rank 0 the whole weights, in main memory, to be saved. Collective.

    No device holds more than one whole tensor at a time. The other ranks keep their shards.
    """
    reshard(module)
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    whole: dict[nn.Parameter, nn.Parameter] = {}  # a tied one is gathered once
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                continue
            if parameter not in whole:
                values = parameter.full_tensor().detach()  # collective
                values = values.cpu() if first else values.new_empty(0)
                whole[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            if first:
                setattr(part, name, whole[parameter])
