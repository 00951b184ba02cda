"""DDP over AWS's SMDDP, within the limits of its documentation for a DDP job."""

from types import MethodType
from typing import Any

import torch.distributed
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from smlightning.cluster import exchange
from smlightning.cluster.strategies import ClusterStrategy


class SmddpStrategy(ClusterStrategy):
    """DistributedDataParallel over SMDDP.

    Its documentation allows no other group or backend next to it, only SUM, and no ``device_ids``
    in barriers. Lightning 2.6.6 violates it with a gloo group around ``prepare_data``, AVG in
    ``self.log(sync_dist=True)`` (Lightning#20409), and ``device_id``.
    """

    def setup_environment(self) -> None:
        prepare_data_now(self)
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend

        super().setup_environment()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Sum, and for a mean divide afterwards."""
        if reduce_op not in ("mean", "avg", torch.distributed.ReduceOp.AVG):
            return super().reduce(tensor, group, reduce_op)
        total = super().reduce(tensor, group, "sum")
        if isinstance(total, Tensor):
            total.copy_(total / self.world_size)
        return total


def prepare_data_now(strategy: ParallelStrategy) -> None:
    """Prepare data just before Lightning's data connector would, which then has nothing to do.

    The connector opens a gloo group when there is a group already and ``prepare_data`` is
    overridden. The other ranks wait at the ranks' store: the rendezvous of the group would end
    after half an hour.
    """
    module = strategy.lightning_module
    assert module is not None
    datamodule: Any = getattr(module.trainer, "datamodule", None)
    owners: Any = ((datamodule, LightningDataModule), (module, LightningModule))
    for owner, base in owners:
        if owner is None or not is_overridden("prepare_data", owner):
            continue
        if strategy.local_rank == 0 and (owner.prepare_data_per_node or strategy.node_rank == 0):
            owner.prepare_data()
        owner.prepare_data = MethodType(base.prepare_data, owner)
        exchange.check_equal("prepared data", {})
