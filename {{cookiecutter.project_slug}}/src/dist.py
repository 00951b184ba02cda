"""What Lightning has to know about the cluster: strategy, devices, number of nodes, and ranks.

    with dist.session() as cluster:  # the ranks meet; rank 0 prints who came
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = Trainer(strategy=strategy, devices=devices, num_nodes=num_nodes, ...)

Rank variables are read by smlightning.cluster only; Lightning detects nothing.
"""

from pytorch_lightning.strategies import Strategy

from smlightning.cluster.choice import choose_strategy
from smlightning.cluster.session import current_cluster, session

__all__ = ["get_global_rank", "get_initialization_info", "get_local_rank", "session"]


def get_global_rank() -> int:
    """Rank among all processes of the job, 0 ≤ rank < world size."""
    return current_cluster().rank


def get_local_rank() -> int:
    """Rank among the processes of this host."""
    return current_cluster().local_rank


def get_initialization_info(
    compression: str = "none", bucket_cap_mb: int = 25, strategy: str = "ddp", shard_size: int = 0
) -> tuple[Strategy, int, int]:
    """``(strategy, devices, num_nodes)`` for ``Trainer``; ``devices`` counts one host's.

    Arguments as in options.py; raises ClusterError where the backend does not have them.
    """
    cluster = current_cluster()
    chosen = choose_strategy(cluster, strategy, compression, bucket_cap_mb, shard_size)
    return chosen, cluster.local_world_size, cluster.num_nodes
