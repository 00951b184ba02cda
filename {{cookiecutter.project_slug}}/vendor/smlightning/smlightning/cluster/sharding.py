"""FSDP2 as Lightning's strategy: every rank keeps a part of weights, gradients and optimizer state.

The network is divided as it is built: each item of a list of equal layers is a block, gathered
when it computes and let go afterwards; what is left is gathered with the whole network. What
needs FSDP2 is in fsdp2.py, which only a `ShardedStrategy` imports.

Only rank 0 builds it whole, in main memory. The others build its outline, and get rank 0's weights
block by block, of which each rank keeps its part: all start as with DDP, and no device and no
other rank's main memory ever holds more than its parts and one block.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from pytorch_lightning.utilities.model_helpers import is_overridden

from smlightning.cluster.all_reduce import verify_all_reduce
from smlightning.cluster.location import SHARDING_NEEDS, Cluster, ClusterError
from smlightning.cluster.parts import DividedTensor, divided_like, weights_like
from smlightning.cluster.strategies import LauncherEnvironment
from smlightning.errors import UserError
from smlightning.outline import outline


class ShardedStrategy(ModelParallelStrategy):
    """Fully sharded data parallel over NCCL or gloo, with an all-reduce verified before training.

    Unlike Lightning's, it divides the network itself, every rank hands what it has to the
    CheckpointIO, and a checkpoint may hold whole tensors or the parts of any number of ranks.
    (Tensor parallelism is ModelParallelStrategy's own, with a network that is written for it.)

    Args:
        shard_size: ranks, one after another, that have the state once among them; every such group
            has a replica (HSDP). 0: all ranks, as torchtitan's data_parallel_shard_degree has it
            by default: what does not fit on a host has to be divided among all.

    Raises:
        ClusterError: torch is older than 2.6, the cluster's backend is SMDDP, or the world size is
            not a multiple of ``shard_size``.
    """

    def __init__(self, cluster: Cluster, shard_size: int = 0) -> None:
        if tuple(map(int, torch.__version__.split(".")[:2])) < SHARDING_NEEDS:
            raise ClusterError(
                f"--strategy fsdp needs torch {'.'.join(map(str, SHARDING_NEEDS))} or newer, and "
                f"this is torch {torch.__version__}",
                'set image to "current", or --strategy to ddp',
            )
        if cluster.backend == "smddp":
            # https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html: its
            # AllGather serves FSDP, but torch.distributed.new_group(), of which a device mesh is
            # made, is not supported.
            raise ClusterError(
                "--strategy fsdp makes process groups of its own, which SMDDP's documentation "
                "does not allow",
                "set distribution to torch_distributed or pytorchddp, or --strategy to ddp",
            )
        _refuse_shard_size(shard_size, cluster.world_size)
        super().__init__(
            data_parallel_size=cluster.world_size,
            tensor_parallel_size=1,
            process_group_backend=cluster.backend,
        )
        self.cluster_environment = LauncherEnvironment(cluster)
        self.shard_size = shard_size or cluster.world_size
        self._verified = False

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def setup_environment(self) -> None:
        super().setup_environment()
        if not self._verified:
            verify_all_reduce(self.global_rank, self.world_size, self.root_device)
            self._verified = True

    @contextlib.contextmanager
    def tensor_init_context(self, empty_init: bool | None = None) -> Iterator[None]:
        """Around ``configure_model``."""
        builds = contextlib.nullcontext() if self.global_rank == 0 else outline()
        with super().tensor_init_context(empty_init), builds:
            yield

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """As with DDP: `setup` makes the optimizers, whose schedule asks the data for its length,
        and then it has to be known where the data starts.
        """
        return False

    def setup(self, trainer: Trainer) -> None:
        self._divide(trainer)
        super().setup(trainer)

    def _divide(self, trainer: Trainer) -> None:
        """Divide the network that `configure_model` has built; once."""
        from smlightning.cluster import fsdp2

        module = self.lightning_module
        assert module is not None
        _refuse_unsupported(module)
        if not fsdp2.is_sharded(module):
            bf16 = trainer.precision == "bf16-mixed"
            fsdp2.shard(module, self._mesh(), self.root_device, bf16)

    def _mesh(self) -> Any:
        """The ranks that divide the state, or (replicas, ranks that divide one), as `fully_shard`
        takes it: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
        """
        if self.shard_size == self.world_size:
            return self.device_mesh["data_parallel"]
        from torch.distributed.device_mesh import init_device_mesh

        sizes = self.world_size // self.shard_size, self.shard_size
        names = "replicas", "parts"
        return init_device_mesh(self.root_device.type, sizes, mesh_dim_names=names)

    def gather_weights(self, base: bool) -> None:
        """See `gather_weights` below."""
        from smlightning.cluster import fsdp2

        module = self.lightning_module
        assert module is not None
        fsdp2.gather(module, base)

    # Checkpoints: what Strategy does, not ModelParallelStrategy

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return Strategy.lightning_module_state_dict(self)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return Strategy.optimizer_state(self, optimizer)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Every rank hands its part on; without ``storage_options`` Lightning writes its own
        folder.
        """
        if storage_options is None:
            super().save_checkpoint(checkpoint, filepath)
        else:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Weights that are tensors or `DividedTensor`: this rank's rows are taken."""
        module = self.lightning_module
        assert module is not None
        self._divide(module.trainer)
        weights = weights_like(checkpoint["state_dict"], module.state_dict())
        module.load_state_dict(weights, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """The states of ``optimizer.state_dict()``, whose tensors are as those of the weights."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
            state = {
                number: _optimizer_state_like(saved["state"][number], parameter)
                for number, parameter in zip(numbers, parameters, strict=True)
                if number in saved["state"]
            }
            optimizer.load_state_dict({**saved, "state": state})


def _optimizer_state_like(state: Mapping[str, Any], parameter: Any) -> dict[str, Any]:
    """One parameter's state; what has not its shape, as the number of steps, is on every rank."""
    divided = {}
    for name, value in state.items():
        is_large = isinstance(value, torch.Tensor | DividedTensor)
        has_shape = is_large and tuple(value.shape) == tuple(parameter.shape)
        divided[name] = divided_like(value, parameter if has_shape else None)
    return divided


def _refuse_shard_size(shard_size: int, world_size: int) -> None:
    """Raises ClusterError where the ranks cannot be divided into groups of that size."""
    if shard_size == 1:
        raise ClusterError(
            "--shard_size 1 leaves nothing to divide", "set --strategy to ddp, which does the same"
        )
    if shard_size and world_size % shard_size:
        fitting = [size for size in range(2, world_size + 1) if world_size % size == 0]
        sizes = ", ".join(map(str, fitting))
        raise ClusterError(
            f"--shard_size {shard_size} does not divide {world_size} ranks into groups",
            f"set it to one of {sizes}, or to 0 for all ranks",
        )


def _refuse_unsupported(module: LightningModule) -> None:
    """Raises UserError where FSDP2 would fail or would train something else."""
    if not is_overridden("configure_model", module):
        raise UserError(
            f"{type(module).__name__} builds its network in __init__, whole on every rank",
            "build it in configure_model, which --strategy fsdp needs",
        )
    direct = [name for name, _ in module.named_parameters(recurse=False)]
    if direct:
        raise UserError(
            f"{', '.join(direct)} lies in {type(module).__name__} itself, and --strategy fsdp "
            "divides the modules in it",
            "move it into a torch.nn.Module, or set --strategy to ddp",
        )
    scalars = [name for name, parameter in module.named_parameters() if not parameter.ndim]
    if scalars:
        raise UserError(
            f"{', '.join(scalars)} has no dimension by which it could be divided",
            "give it the shape (1,), or set --strategy to ddp",
        )
    if any(getattr(part, "track_running_stats", False) for part in module.modules()):
        raise UserError(
            f"{type(module).__name__} keeps running statistics, which would be other ones on each "
            "rank with --strategy fsdp",
            "take a LayerNorm or GroupNorm, or set --strategy to ddp",
        )


def gather_weights(trainer: Trainer, base: bool = False) -> None:
    """Give rank 0 the whole weights of a sharded model, to be saved. Collective.

    Other strategies have them on every rank already: nothing changes.

    Args:
        base: also frozen weights that ``state_dict`` leaves out: an adapter is merged into them.
    """
    if isinstance(trainer.strategy, ShardedStrategy):
        trainer.strategy.gather_weights(base)
