"""Which of Lightning's strategies the ranks of a cluster train with."""

from typing import Any

from pytorch_lightning.strategies import Strategy

from smlightning.cluster.location import Cluster, ClusterError
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.cluster.smddp import SmddpStrategy
from smlightning.cluster.strategies import ClusterStrategy, OneProcess


def choose_strategy(
    cluster: Cluster,
    name: str = "ddp",
    compression: str = "none",
    bucket_cap_mb: int = 25,
    shard_size: int = 0,
    **options: Any,
) -> Strategy:
    """The strategy for this cluster: a DDPStrategy over its backend, or `ShardedStrategy`.

    Args:
        name: ddp or fsdp; one process alone has nothing to divide, and resumes from either.
        compression: of gradients between ranks: none, fp16, bf16 or powersgd.
        bucket_cap_mb: largest size in MiB in which gradients are sent.
        shard_size: of fsdp: ranks that have the state once among them; 0: all.
        options: more arguments of DistributedDataParallel, for ddp on several ranks:
            ``find_unused_parameters``, ``static_graph``, …

    Raises:
        ClusterError: the backend does not have that compression, or not that strategy; or the
            ranks are no multiple of ``shard_size``.
    """
    if shard_size and name != "fsdp":
        raise ClusterError(
            f"--shard_size {shard_size} is for --strategy fsdp, and this is {name}",
            "set --strategy to fsdp, or leave it out",
        )
    if cluster.backend == "none":
        return OneProcess(cluster)
    if name == "fsdp":
        return ShardedStrategy(cluster, compression, shard_size)
    if cluster.backend == "smddp":
        return SmddpStrategy(cluster, compression, bucket_cap_mb, **options)
    return ClusterStrategy(cluster, compression, bucket_cap_mb, **options)
