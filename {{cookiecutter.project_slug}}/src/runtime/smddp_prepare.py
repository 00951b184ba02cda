"""``prepare_data`` before Lightning would call it, for a backend that allows no second process group beside its own."""

from types import MethodType
from typing import Any

from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.utilities.model_helpers import is_overridden


def prepare_data_now(strategy: ParallelStrategy) -> None:
    """Prepare data here, just before Lightning's data connector would, and leave it nothing to do.

    The connector opens a gloo group when there is a group already and ``prepare_data`` is overridden. Before the first
    run the other ranks wait in the rendezvous; in a later one, ``test`` after ``fit``, the data is ready.
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
        strategy.barrier()
