"""FSDP2 as Lightning's strategy: every rank keeps a shard of weights, gradients, optimizer state.

Each item of a list of equal layers is a block, gathered when it computes and freed afterwards; the
rest is gathered with the whole network. Code that needs FSDP2 is in fsdp2.py, which only a
`ShardedStrategy` imports.

Every rank builds the network in main memory, or, except for rank 0, on the meta device. All get
rank 0's weights block by block, of which each rank keeps its shard: all start as with DDP, and no
device ever holds more than its shard and one block.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy
from pytorch_lightning.utilities.model_helpers import is_overridden

from smlightning import copies
from smlightning.cluster.location import SHARDING_NEEDS, Cluster, ClusterError, check_shard_size
from smlightning.cluster.shards import has_shape, sharded_like, weights_like
from smlightning.cluster.strategies import ConnectsRanks, LauncherEnvironment
from smlightning.errors import UserError


class ShardedStrategy(ConnectsRanks, ModelParallelStrategy):
    """Fully sharded data parallel over NCCL or gloo, with an all-reduce verified before training.

    Unlike Lightning's, it shards the network itself, every rank gives its shard to the
    CheckpointIO, and a checkpoint may hold whole tensors or the shards of any number of ranks.

    Args:
        shard_size: consecutive ranks that hold the state once among them; every such group is a
            replica (HSDP). 0: all ranks.

    Attributes:
        sample: on rank 0 the model before it is sharded, with one number of each tensor; None if
            it cannot be copied.

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
            # https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html:
            # torch.distributed.new_group(), which a device mesh needs, is not supported.
            raise ClusterError(
                "--strategy fsdp creates process groups, which SMDDP does not support",
                "set distribution to torch_distributed or pytorchddp, or --strategy to ddp",
            )
        check_shard_size(shard_size, cluster.world_size)
        super().__init__(
            data_parallel_size=cluster.world_size,
            tensor_parallel_size=1,
            process_group_backend=cluster.backend,
        )
        self.cluster_environment = LauncherEnvironment(cluster)
        self.shard_size = shard_size or cluster.world_size
        self.sample: Any = None

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """False, as with DDP: the data's start must be known before `setup`.

        `setup` creates optimizers, and their schedule asks the data for its length.
        """
        return False

    def setup(self, trainer: Trainer) -> None:
        module: Any = self.lightning_module
        if not is_overridden("configure_model", module):  # Lightning expects `fully_shard` there
            module.configure_model = lambda: None
        self._shard(trainer)
        super().setup(trainer)

    def _shard(self, trainer: Trainer) -> None:
        """Shard the network that `configure_model` has built, once."""
        from smlightning.cluster import fsdp2

        module = self.lightning_module
        assert module is not None
        _check_module(module)
        if not fsdp2.is_sharded(module):
            if trainer.is_global_zero:
                with contextlib.suppress(Exception):  # of the model's attributes
                    self.sample = copies.copied(module, one_number=True)
            bf16 = trainer.precision == "bf16-mixed"
            fsdp2.shard(module, self._mesh(), self.root_device, bf16)

    def on_validation_end(self) -> None:
        """Free what a forward pass without backward leaves gathered: parameters are shards again,
        of which the optimizers are.
        """
        from smlightning.cluster import fsdp2

        assert self.lightning_module is not None
        fsdp2.reshard(self.lightning_module)

    on_test_end = on_validation_end

    def _mesh(self) -> Any:
        """The ranks that hold the shards, or (replicas, ranks that hold shards of one).

        It is the ``mesh`` of `fully_shard`:
        https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
        """
        if self.shard_size == self.world_size:
            return self.device_mesh["data_parallel"]
        from torch.distributed.device_mesh import init_device_mesh

        sizes = self.world_size // self.shard_size, self.shard_size
        names = "replicas", "shards"
        return init_device_mesh(self.root_device.type, sizes, mesh_dim_names=names)

    # Checkpoints: what Strategy does, not ModelParallelStrategy

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return Strategy.lightning_module_state_dict(self)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return Strategy.optimizer_state(self, optimizer)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Weights that are whole or sharded (shards.py): takes this rank's rows."""
        module = self.lightning_module
        assert module is not None
        self._shard(module.trainer)
        weights = weights_like(checkpoint["state_dict"], module.state_dict())
        module.load_state_dict(weights, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """States of ``optimizer.state_dict()``; tensors as in `load_model_state_dict`."""
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
    """One parameter's state; values of other shapes, such as the step, are on every rank."""
    return {
        name: sharded_like(value, parameter if has_shape(value, parameter.shape) else None)
        for name, value in state.items()
    }


def _check_module(module: LightningModule) -> None:
    """Raise a UserError if FSDP2 would train another model, without an error."""
    direct = [name for name, _ in module.named_parameters(recurse=False)]
    if direct:
        raise UserError(
            f"{', '.join(direct)} belongs to {type(module).__name__} itself, and --strategy fsdp "
            "shards only the parameters of its submodules",
            "move it into a torch.nn.Module, or set --strategy to ddp",
        )
    if any(getattr(part, "track_running_stats", False) for part in module.modules()):
        raise UserError(
            f"{type(module).__name__} keeps running statistics, which differ between ranks with "
            "--strategy fsdp",
            "use a LayerNorm or GroupNorm, or set --strategy to ddp",
        )


def gather_weights(trainer: Trainer) -> None:
    """Give rank 0 the whole weights of a sharded model, to save them. Collective.

    With other strategies every rank has them already.
    """
    if isinstance(trainer.strategy, ShardedStrategy):
        from smlightning.cluster import fsdp2

        fsdp2.gather(trainer.lightning_module)
