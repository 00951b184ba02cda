"""The cluster in Lightning's terms: environment, strategies for one process and for many."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed
from lightning_fabric.plugins import ClusterEnvironment
from pytorch_lightning.strategies import (
    DDPStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from torch.nn.parallel import DistributedDataParallel

from smlightning.cluster import ending
from smlightning.cluster.all_reduce import verify_all_reduce
from smlightning.cluster.location import Cluster, ClusterError
from smlightning.cluster.store import RankStore
from smlightning.errors import UserError

UNUSED = "find_unused_parameters"
LISTED = 8  # parameters in an error
USUAL = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip  # types that every backend sends


class LauncherEnvironment(ClusterEnvironment):
    """The cluster in Lightning's terms, without reading variables again.

    Under mpirun Lightning would take its MPIEnvironment and freeze (Lightning#20049); the
    LightningEnvironment of AWS's snippet has node rank 0 on every node and forgets the world size
    after ``fit``.
    """

    creates_processes_externally = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def main_address(self) -> str:
        return self.cluster.main_address

    @property
    def main_port(self) -> int:
        return self.cluster.main_port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self.cluster.world_size

    def global_rank(self) -> int:
        return self.cluster.rank

    def local_rank(self) -> int:
        return self.cluster.local_rank

    def node_rank(self) -> int:
        return self.cluster.node_rank

    def set_world_size(self, size: int) -> None:
        """Check the product of Trainer's ``devices`` and ``num_nodes`` against the launcher's."""
        if size != self.cluster.world_size:
            raise ClusterError(
                f"Trainer(devices, num_nodes) expects {size} processes, "
                f"but {self.cluster.world_size} were started",
                "pass the values that get_initialization_info() returns",
            )

    def set_global_rank(self, rank: int) -> None:
        pass  # follows from what set_world_size checks


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


class ConnectsRanks(ParallelStrategy):
    """Makes the process group, and verifies an all-reduce before the first run."""

    _is_verified = False

    def setup_environment(self) -> None:
        """Lightning finds the group and leaves it as it is."""
        ranks, strategy = ending.ranks(), cast(Any, self)
        if ranks and ranks.connect and not torch.distributed.is_initialized():
            connect_group(ranks.cluster, ranks.connect(), strategy._timeout)
        super().setup_environment()
        if not self._is_verified:
            verify_all_reduce(self.global_rank, self.world_size, self.root_device)
            self._is_verified = True


def connect_group(cluster: Cluster, ranks: RankStore, timeout: timedelta) -> None:
    """Make the process group over the ranks' own store.

    torch's rendezvous would use that of torchrun's agent, in which a restarted job finds the
    addresses of the attempt before (torch 2.13: rendezvous.py, ``_torchelastic_use_agent_store``).
    """
    os.environ["MASTER_ADDR"] = cluster.main_address  # as Lightning does
    os.environ["MASTER_PORT"] = str(cluster.main_port)
    ranks.store.set_timeout(timeout)
    if cluster.device != "cpu":
        torch.cuda.set_device(cluster.device)
    torch.distributed.init_process_group(
        cluster.backend,
        store=ranks.store,
        rank=cluster.rank,
        world_size=cluster.world_size,
        timeout=timeout,
        device_id=torch.device(cluster.device) if cluster.backend == "nccl" else None,
    )


def parameters_without_gradient(error: RuntimeError, module: torch.nn.Module) -> str:
    """Names of the parameters that DDP's error is about; "" for another error.

    torch 2.13, reducer.cpp: ``Parameter indices which did not receive grad for rank 0: 2 3``.
    """
    found = re.search(r"indices which did not receive grad for rank \d+: ([\d ]+)", str(error))
    trained = [name for name, tensor in module.named_parameters() if tensor.requires_grad]
    names = [trained[int(number)] for number in found[1].split()] if found else []
    return ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")


def _place_of(argument: str) -> str:
    """The line of the project's dist.py with an argument of its strategy."""
    path = Path(getattr(sys.modules.get("dist"), "__file__", None) or "")
    lines = path.read_text().splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if argument in line:
            return f"src/{path.name}, line {number}"
    return "src/dist.py"


class OneProcess(BuildsOnCPU, OptimizersStay, SingleDeviceStrategy):
    """One device; its cluster environment only keeps Lightning from looking for one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(device=cluster.device)
        self.cluster_environment = LauncherEnvironment(cluster)


class ClusterStrategy(ConnectsRanks, BuildsOnCPU, OptimizersStay, DDPStrategy):
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

    def configure_ddp(self) -> None:
        """Raise a UserError if the backend cannot send a buffer's type."""
        try:
            super().configure_ddp()
        except RuntimeError as error:
            if not re.search("scalar type|data type is not supported", str(error)):
                raise
            module: Any = self.lightning_module
            unusual = {
                name: f"{name} ({tensor.dtype})"
                for name, tensor in [*module.named_parameters(), *module.named_buffers()]
                if tensor.dtype not in USUAL
            }
            raise UserError(
                f"{', '.join(unusual.values())} cannot be sent between ranks by "
                f"{self._process_group_backend}",
                "use another type, such as torch.int32, or keep it out of the module's buffers",
            ) from None

    def training_step(self, *args: Any, **options: Any) -> Any:
        """In manual optimization Lightning makes DDP copy no buffers after the first step, and each
        rank would keep its own BatchNorm statistics.
        """
        self._copy_buffers()
        try:
            return super().training_step(*args, **options)
        except RuntimeError as error:
            module: Any = self.lightning_module
            names = parameters_without_gradient(error, module)
            if not names:
                raise
            raise UserError(
                f"the loss of a step did not use {names}, and DDP expects a gradient of each "
                "parameter that is trained",
                f"use it, set its requires_grad to False, or set {UNUSED} to True in "
                f"{_place_of(UNUSED)}",
            ) from None

    def on_validation_start(self) -> None:
        self._copy_buffers()
        super().on_validation_start()

    def _copy_buffers(self) -> None:
        ddp, module = self.model, cast(Any, self.lightning_module)
        if isinstance(ddp, DistributedDataParallel) and not module.automatic_optimization:
            ddp.require_forward_param_sync = True
