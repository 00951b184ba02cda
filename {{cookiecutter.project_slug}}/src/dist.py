"""The wiring of the cluster: which strategy a backend gets, devices, number of nodes, and ranks.

    with dist.session() as cluster:  # the ranks connect; rank 0 prints them
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = Trainer(strategy=strategy, devices=devices, num_nodes=num_nodes, ...)

| launcher               | backend of `cluster`  | strategy                              |
|------------------------|-----------------------|---------------------------------------|
| none: one process      | none                  | OneProcess                            |
| torchrun, mpirun, srun | nccl, on CPUs gloo    | ClusterStrategy, a DDPStrategy        |
| mpirun and SMDDP       | smddp                 | SmddpStrategy, a ClusterStrategy      |
| with `--strategy fsdp` | nccl, gloo            | ShardedStrategy: FSDP2                |

smlightning.cluster reads the launchers' variables; Lightning does not.
"""

from typing import Any

from smlightning.cluster.location import Cluster
from smlightning.cluster.session import current_cluster, session
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.cluster.smddp import SmddpStrategy
from smlightning.cluster.strategies import ClusterStrategy, OneProcess, Strategy

__all__ = ["get_global_rank", "get_initialization_info", "get_local_rank", "session"]


def get_global_rank() -> int:
    """Rank among all processes of the job, 0 ≤ rank < world size."""
    return current_cluster().rank


def get_local_rank() -> int:
    """Rank among the processes of this host."""
    return current_cluster().local_rank


def get_initialization_info(
    strategy: str = "ddp", shard_size: int = 0
) -> tuple[Strategy, int, int]:
    """``(strategy, devices, num_nodes)`` for ``Trainer``; ``devices`` counts one host's.

    Arguments as in options.py; raises ClusterError if the backend does not support them.
    """
    cluster = current_cluster()
    chosen = choose_strategy(cluster, strategy, shard_size)
    return chosen, cluster.local_world_size, cluster.num_nodes


def choose_strategy(cluster: Cluster, strategy: str = "ddp", shard_size: int = 0) -> Strategy:
    """The strategy of the table above; one process needs no options."""
    if cluster.backend == "none":
        return OneProcess(cluster)
    if strategy == "fsdp":
        return ShardedStrategy(cluster, shard_size)
    arguments: dict[str, Any] = {  # of DistributedDataParallel
        "gradient_as_bucket_view": True,  # gradients live in the buckets: one copy less
        "find_unused_parameters": False,  # True if some steps leave parameters out
    }
    kind = SmddpStrategy if cluster.backend == "smddp" else ClusterStrategy
    return kind(cluster, **arguments)
