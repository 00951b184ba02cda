"""The cluster in Lightning's terms: environment, strategies for one process and for many."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lightning_fabric.plugins import ClusterEnvironment
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import (
    DDPStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)

from smlightning.cluster.all_reduce import verify_all_reduce
from smlightning.cluster.location import Cluster, ClusterError


class LauncherEnvironment(ClusterEnvironment):
    """The cluster in Lightning's terms, without reading variables again.

    Under mpirun Lightning would take its MPIEnvironment and freeze (Lightning#20049); the
    LightningEnvironment of AWS's snippet has node rank 0 on every node and forgets the world size
    after ``fit``.
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
        """Check the product of Trainer's ``devices`` and ``num_nodes`` against the launcher's."""
        if size != self._cluster.world_size:
            raise ClusterError(
                f"Trainer(devices, num_nodes) expects {size} processes, "
                f"but {self._cluster.world_size} were started",
                "pass the values that get_initialization_info() returns",
            )

    def set_global_rank(self, rank: int) -> None:
        pass  # follows from what set_world_size checks


class ExtraHooks(Strategy):
    """Calls two hooks that Lightning's callbacks lack, if a callback has them.

    ``process_dataloader(trainer, loader)`` returns the loader to iterate, after Lightning has
    divided it among the ranks; ``before_setup(trainer)`` comes just before the data's ``setup``.
    """

    def process_dataloader(self, dataloader: object) -> object:
        for hook, trainer in self._hooks("process_dataloader"):
            dataloader = hook(trainer, dataloader)
        return dataloader

    def barrier(self, name: str | None = None) -> None:
        super().barrier(name)  # type: ignore[safe-super]
        if name == "pre_setup":  # Lightning's name for it (trainer/call.py)
            for hook, trainer in self._hooks("before_setup"):
                hook(trainer)

    def _hooks(self, name: str) -> list[tuple[Any, Trainer]]:
        module = self.lightning_module
        if module is None:
            return []
        trainer: Any = module.trainer
        hooks = [getattr(callback, name, None) for callback in trainer.callbacks]
        return [(hook, trainer) for hook in hooks if hook is not None]


class BuildsOnCPU(Strategy):
    """Calls ``configure_model`` with the CPU as default device, as FSDP's strategy does.

    On a GPU, Lightning's strategies make that the default device, whose generator gives other
    weights for the same seed.
    """

    @contextlib.contextmanager
    def tensor_init_context(self, empty_init: bool | None = None) -> Iterator[None]:
        with super().tensor_init_context(empty_init), torch.device("cpu"):
            yield


class OptimizersStay(Strategy):
    """Leaves optimizers where they are when training ends.

    Lightning's strategies then move their state from every GPU to main memory (2.6.6:
    strategies/strategy.py, ``teardown``): with AdamW 8 bytes for each weight and rank, next to the
    last checkpoint's copy of them.
    """

    def teardown(self) -> None:
        optimizers, self.optimizers = self.optimizers, []
        super().teardown()
        self.optimizers = optimizers


class VerifiesAllReduce(ExtraHooks, ParallelStrategy):
    """Verifies an all-reduce before the first run."""

    _is_verified = False

    def setup_environment(self) -> None:
        super().setup_environment()
        if not self._is_verified:
            verify_all_reduce(self.global_rank, self.world_size, self.root_device)
            self._is_verified = True


class OneProcess(ExtraHooks, BuildsOnCPU, OptimizersStay, SingleDeviceStrategy):
    """One device; its cluster environment only keeps Lightning from looking for one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(device=cluster.device)
        self.cluster_environment = LauncherEnvironment(cluster)


class ClusterStrategy(VerifiesAllReduce, BuildsOnCPU, OptimizersStay, DDPStrategy):
    """DistributedDataParallel over NCCL or gloo, with an all-reduce verified before the first step.

    Args:
        options: of DistributedDataParallel, as Lightning's DDPStrategy takes them:
            ``find_unused_parameters``, ``static_graph``, ``bucket_cap_mb``, …
    """

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        super().__init__(
            cluster_environment=LauncherEnvironment(cluster),
            process_group_backend=cluster.backend,
            **options,
        )
