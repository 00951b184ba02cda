"""torch.compile for each strategy."""

from pytorch_lightning.strategies import Strategy
from torch import nn

from smlightning.cluster.blocks import blocks
from smlightning.cluster.sharding import ShardedStrategy


def compile_network(network: nn.Module, strategy: Strategy) -> None:
    """Compile the network for inputs of any length, when it is first called.

    With FSDP each block is compiled separately, as in torchtitan: gathering a block's weights would
    interrupt a larger compiled part, and equal blocks are compiled once.
    """
    parts = list(blocks(network)) if isinstance(strategy, ShardedStrategy) else []
    for part in parts or [network]:
        part.compile(dynamic=True)
