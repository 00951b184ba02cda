"""FSDP2 as Lightning's strategy: every rank keeps a part of weights, gradients and optimizer state.

The network is divided as it is built: each item of a list of equal layers is a block, gathered
when it computes and let go afterwards; what is left is gathered with the whole network.

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
from torch import nn

from smlightning.cluster.all_reduce import verify_all_reduce
from smlightning.cluster.location import Cluster, ClusterError
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
        ClusterError: the cluster's backend is SMDDP, compression is set, or the world size is no
            multiple of ``shard_size``.
    """

    def __init__(self, cluster: Cluster, compression: str = "none", shard_size: int = 0) -> None:
        if cluster.backend == "smddp":
            # https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html: its
            # AllGather serves FSDP, but torch.distributed.new_group(), of which a device mesh is
            # made, is not supported.
            raise ClusterError(
                "--strategy fsdp makes process groups of its own, which SMDDP's documentation "
                "does not allow",
                "set distribution to torch_distributed or pytorchddp, or --strategy to ddp",
            )
        if compression != "none":
            raise ClusterError(
                f"compression={compression} is for the gradients of DDP",
                "set compression to none, or --strategy to ddp",
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
        module = self.lightning_module
        assert module is not None
        _refuse_unsupported(module)
        if not is_sharded(module):
            bf16 = trainer.precision == "bf16-mixed"
            shard(module, self._mesh(), self.root_device, bf16)

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


def is_sharded(module: nn.Module) -> bool:
    """Whether `shard` has divided this module."""
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(part, FSDPModule) for part in module.modules())


def shard(module: nn.Module, mesh: Any, device: torch.device, bf16: bool = False) -> None:
    """Divide the parameters of every module in ``module`` among the mesh's ranks. Collective.

    Args:
        module: with rank 0's weights in main memory; on the other ranks it may be an outline.
        mesh: of one dimension, or of (replicas, parts).
        bf16: compute in bfloat16 and add gradients up in float32; weights stay in float32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    send_buffers(module, device)
    for network in networks(module):
        for block in [*blocks(network), network]:
            send_parameters(block, device)
            fully_shard(block, mesh=mesh, mp_policy=policy)  # frees what other ranks have


def send_parameters(module: nn.Module, device: torch.device) -> None:
    """Give every rank rank 0's parameters, but for those that are divided. Collective."""
    from torch.distributed.tensor import DTensor

    sent: dict[nn.Parameter, nn.Parameter] = {}  # one that has two places is sent once
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                continue
            if parameter not in sent:
                whole = _from_rank_0(parameter, device)
                sent[parameter] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            setattr(part, name, sent[parameter])


def send_buffers(module: nn.Module, device: torch.device) -> None:
    """Give every rank rank 0's buffers. Collective."""
    for part in module.modules():
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, _from_rank_0(buffer, device))


def _from_rank_0(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Rank 0's, sent as bytes: NCCL knows no int16, and sends what lies without gaps."""
    if tensor.is_meta:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    else:
        whole = tensor.detach().to(device).contiguous()
    torch.distributed.broadcast(whole.view(-1).view(torch.uint8), 0)
    return whole


def networks(module: nn.Module) -> Iterator[nn.Module]:
    """The modules in ``module`` that have parameters; of a list or dictionary, its items."""
    for child in module.children():
        if not any(True for _ in child.parameters()):
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from networks(child)
        else:
            yield child


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The items of the outermost lists of equal layers, as Transformers have them."""
    for child in network.children():
        items = list(child.children())
        kinds = {type(item) for item in items}
        is_list = isinstance(child, nn.ModuleList | nn.Sequential)
        is_list = is_list and len(items) > 1 and len(kinds) == 1
        if is_list and any(True for _ in child.parameters()):
            yield from items
        else:
            yield from blocks(child)


def gather_weights(module: nn.Module, base: bool = False) -> None:
    """Give rank 0 the whole weights, in main memory, to be saved. Collective.

    No device holds more than one whole tensor at a time. The other ranks keep their parts. What was
    not divided stays as it is.

    Args:
        base: also of frozen weights that ``state_dict`` leaves out: an adapter is merged into them.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()  # after a forward pass alone it is still gathered
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    kept = module.state_dict().keys()
    left_out = {
        parameter
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if not (base or parameter.requires_grad or name in kept)
    }
    whole: dict[nn.Parameter, nn.Parameter] = {}  # one that has two places is gathered once
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor) or parameter in left_out:
                continue
            if parameter not in whole:
                values = _kept_of_whole(parameter, first)
                whole[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            if first:
                setattr(part, name, whole[parameter])


def _kept_of_whole(parameter: Any, keeps: bool) -> torch.Tensor:
    """The whole tensor in main memory, else nothing; its device has it no longer then."""
    tensor = parameter.full_tensor().detach()
    return tensor.cpu() if keeps else tensor.new_empty(0)
