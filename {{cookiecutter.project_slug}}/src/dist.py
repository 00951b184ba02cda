"""What Lightning has to know about the cluster: strategy, devices, number of nodes, and each process's rank.

    with dist.session() as cluster:  # the ranks meet; rank 0 prints who came
        strategy, devices, num_nodes = dist.get_initialization_info()
        trainer = Trainer(strategy=strategy, devices=devices, num_nodes=num_nodes, accelerator=cluster.accelerator)

Rank variables are read by runtime/cluster.py alone; Lightning is told everything and detects nothing.
"""

import os
from typing import Any

import torch.distributed
from lightning_fabric.plugins import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from runtime.all_reduce import verify_all_reduce
from runtime.cluster import Cluster, ClusterError
from runtime.ranks import cluster, session
from runtime.smddp_prepare import prepare_data_now

__all__ = ["cluster", "get_global_rank", "get_initialization_info", "get_local_rank", "session"]

POWERSGD_START = 100  # steps with whole gradients, while they change most


def get_global_rank() -> int:
    """Rank among all processes of the job, 0 ≤ rank < world size."""
    return cluster().rank


def get_local_rank() -> int:
    """Rank among the processes of this host."""
    return cluster().local_rank


def get_initialization_info(compression: str = "none", bucket_cap_mb: int = 25) -> tuple[Strategy, int, int]:
    """``(strategy, devices, num_nodes)`` for ``Trainer``; ``devices`` counts one host's. Options: as in options.py.

    Raises:
        ClusterError: the backend does not have that compression.
    """
    this = cluster()
    if this.world_size == 1:
        return OneProcess(this), 1, 1
    if this.backend == "smddp" and compression != "none":
        raise ClusterError(f"compression={compression} is not documented for SMDDP; set it to none.")
    if this.backend == "gloo" and compression == "bf16":
        raise ClusterError("compression=bf16 needs NCCL, and this job runs on gloo; set it to fp16 or powersgd.")
    kind = SmddpStrategy if this.backend == "smddp" else ClusterStrategy
    return kind(this, compression, bucket_cap_mb), this.local_world_size, this.num_nodes


class LauncherEnvironment(ClusterEnvironment):
    """The cluster in Lightning's terms: the true node rank, nothing read late, nothing lost at teardown.

    Under mpirun Lightning would take its MPIEnvironment and freeze (Lightning#20049); the LightningEnvironment of AWS's
    snippet has node rank 0 on every node and forgets the world size after ``fit``.
    """

    creates_processes_externally = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def main_address(self) -> str:
        return self._cluster.main_address

    @property
    def main_port(self) -> int:
        return self._cluster.main_port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._cluster.world_size

    def global_rank(self) -> int:
        return self._cluster.rank

    def local_rank(self) -> int:
        return self._cluster.local_rank

    def node_rank(self) -> int:
        return self._cluster.node_rank

    def set_world_size(self, size: int) -> None:
        """Lightning multiplies Trainer's arguments: they have to agree with the launcher."""
        if size != self._cluster.world_size:
            raise ClusterError(
                f"Trainer(devices, num_nodes) makes {size} processes, but {self._cluster.world_size} were started; "
                "pass on what get_initialization_info() returns."
            )

    def set_global_rank(self, rank: int) -> None:
        pass  # follows from what set_world_size checks


class OneProcess(SingleDeviceStrategy):
    """One device. It names a cluster environment only to keep Lightning from looking for one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(device=cluster.device)
        self.cluster_environment = LauncherEnvironment(cluster)


class ClusterStrategy(DDPStrategy):
    """DistributedDataParallel over NCCL or gloo, with an all-reduce verified before the first step."""

    def __init__(self, cluster: Cluster, compression: str = "none", bucket_cap_mb: int = 25) -> None:
        cap = bucket_cap_mb if bucket_cap_mb != 25 else None  # DDP's default, whose first bucket is smaller
        if compression == "powersgd" and cluster.backend == "gloo":
            cap = 2**20  # one bucket: on gloo the ranks would start the collectives of several in different orders
        super().__init__(
            cluster_environment=LauncherEnvironment(cluster),
            process_group_backend=cluster.backend,
            gradient_as_bucket_view=True,  # gradients live in the buckets: one copy of them less
            bucket_cap_mb=cap,
        )
        self._compression = compression
        self._verified = False

    def setup_environment(self) -> None:
        super().setup_environment()
        if not self._verified:
            verify_all_reduce(self.global_rank, self.world_size, self.root_device)
            self._verified = True

    def configure_ddp(self) -> None:
        """Lightning registers DDP's hooks on GPUs alone."""
        super().configure_ddp()
        model: Any = self.model
        if self._compression == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=POWERSGD_START)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self._compression != "none":
            model.register_comm_hook(None, getattr(default_hooks, f"{self._compression}_compress_hook"))


class SmddpStrategy(ClusterStrategy):
    """DistributedDataParallel over AWS's SMDDP, kept to what its documentation allows in a DDP job.

    That is: no other group or backend beside it, SUM only, no device_ids in barriers. Lightning 2.6.6 breaks it with a
    gloo group around ``prepare_data``, AVG in ``self.log(sync_dist=True)`` (Lightning#20409), and ``device_id``.
    """

    def setup_environment(self) -> None:
        prepare_data_now(self)
        if not torch.distributed.is_initialized():
            import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend

            if self.root_device.type == "cuda":
                torch.cuda.set_device(self.root_device)
            where: Any = self.cluster_environment
            os.environ |= {"MASTER_ADDR": where.main_address, "MASTER_PORT": str(where.main_port)}
            torch.distributed.init_process_group(
                "smddp", rank=self.global_rank, world_size=self.world_size, timeout=self._timeout
            )
        super().setup_environment()  # finds the group and leaves it as it is

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Sum, then divide where the mean was asked for."""
        mean = reduce_op in ("mean", "avg", torch.distributed.ReduceOp.AVG)
        result = super().reduce(tensor, group, "sum" if mean else reduce_op)
        return result.copy_(result / self.world_size) if mean and isinstance(result, Tensor) else result
