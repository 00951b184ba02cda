"""torch.compile of a network, as its strategy needs it."""

from pytorch_lightning.strategies import Strategy
from torch import nn

from smlightning.cluster.blocks import blocks
from smlightning.cluster.sharding import ShardedStrategy


def compile_network(network: nn.Module, strategy: Strategy) -> None:
    """Compile the network for inputs of any length, when it is first called.

    Where it will be divided each block is compiled by itself, as torchtitan does: to gather a
    block's weights interrupts what is compiled together, and equal blocks are compiled once.
    """
    parts = list(blocks(network)) if isinstance(strategy, ShardedStrategy) else []
    for part in parts or [network]:
        part.compile(dynamic=True)
