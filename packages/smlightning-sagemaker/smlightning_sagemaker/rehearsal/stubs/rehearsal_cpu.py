"""Runs on the CPU what a script asks of a GPU, and notes each kind of call once.

Only calls that name a GPU change. ``torch.cuda.is_available()`` stays false, so that a script that
looks for a GPU chooses the CPU by itself.
"""

import contextlib
import functools
import importlib.abc
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import rehearsal_process
import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._device import _device_constructors

CPU = torch.device("cpu")
GPU = re.compile(r"(gpu|cuda)(:\d+)?")
# Modules, and the classes in them that choose a device.
CHOOSERS = {
    "accelerate.state": "PartialState",
    "lightning.fabric.connector": "_Connector",
    "lightning.pytorch.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
    "lightning_fabric.connector": "_Connector",
    "pytorch_lightning.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
}
noted: list[str] = []  # facts["on_cpu"]


def use_cpu() -> None:
    """Replace the calls of torch that need a GPU; Lightning's connectors once they are imported."""
    for function in _device_constructors():
        if getattr(torch, function.__name__, None) is function:
            setattr(torch, function.__name__, without_gpu(function, function.__name__))
    for kind in (torch.Tensor, torch.nn.Module):
        kind.to = without_gpu(kind.to, "to", numbers=True)  # type: ignore[attr-defined]
        kind.cuda = unchanged("cuda()")  # type: ignore[attr-defined]
    torch.load = without_gpu(torch.load, "load")
    torch.set_default_device = without_gpu(torch.set_default_device, "set_default_device")
    torch.Tensor.pin_memory = unchanged("pin_memory()")  # type: ignore[method-assign]
    torch.cuda.set_device = functools.partial(note, "torch.cuda.set_device()")
    torch.cuda.synchronize = functools.partial(note, "torch.cuda.synchronize()")
    torch.cuda.current_device = lambda: 0
    torch.nn.SyncBatchNorm.forward = batch_norm  # type: ignore[method-assign]
    data_parallel = torch.nn.parallel.DistributedDataParallel
    data_parallel.__init__ = without_devices(data_parallel.__init__)  # type: ignore[method-assign]
    data_parallel._passing_sync_batchnorm_handle = note  # type: ignore[method-assign]
    mesh = dist.device_mesh.DeviceMesh
    mesh.__init__ = without_gpu(mesh.__init__, "DeviceMesh")  # type: ignore[method-assign]
    new_group = over_gloo(dist.new_group, 2)
    for module in (dist, dist.distributed_c10d):
        module.new_group = new_group  # type: ignore[attr-defined]
    dist.barrier = without_device_ids(dist.barrier)
    sys.meta_path.insert(0, AfterImport())


def note(what: Any, *_: Any) -> None:
    if isinstance(what, str) and what not in noted:
        noted.append(what)


def without_gpu(function: Any, name: str, numbers: bool = False) -> Any:
    """The function with the CPU in place of each GPU among its arguments.

    TorchScript still compiles its calls, and pickle still finds it.

    Args:
        numbers: whether a first argument that is an integer is a GPU.
    """

    def replaced(value: Any) -> Any:
        is_gpu = isinstance(value, str | torch.device) and GPU.fullmatch(str(value))
        if is_gpu:
            note(f'{name}("cuda")')
        return type(value)("cpu") if is_gpu else value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if numbers and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return function(
            *map(replaced, args), **{key: replaced(value) for key, value in kwargs.items()}
        )

    if builtin := torch.jit._builtins._find_builtin(function):
        torch.jit._builtins._register_builtin(call, builtin)
    if getattr(torch, name, None) is function:
        call.__module__, call.__qualname__ = "torch", name
    return call


def unchanged(name: str) -> Callable[..., Any]:
    """A method that returns its tensor or module as it is."""

    def call(item: Any, *_: Any, **__: Any) -> Any:
        note(name)
        return item

    return call


def batch_norm(module: Any, batch: torch.Tensor) -> torch.Tensor:
    """SyncBatchNorm with each rank's own statistics."""
    note("SyncBatchNorm")
    module._check_input_dim(batch)
    return _BatchNorm.forward(module, batch)


def without_device_ids(barrier: Callable[..., Any]) -> Callable[..., Any]:
    """``barrier`` without ``device_ids``, which gloo rejects; SMDDP's stub rejects it itself."""

    @functools.wraps(barrier)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "smddp" not in dist.get_backend():
            kwargs.pop("device_ids", None)
        return barrier(*args, **kwargs)

    return call


def without_devices(init: Callable[..., None]) -> Callable[..., None]:
    """DistributedDataParallel's ``__init__`` without ``device_ids``."""

    @functools.wraps(init)
    def call(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        dropped = [*args[:2], kwargs.pop("device_ids", None), kwargs.pop("output_device", None)]
        if any(value is not None for value in dropped):
            note("device_ids")
        init(self, module, None, None, *args[2:], **kwargs)

    return call


def over_gloo(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """The function with gloo in place of NCCL as the argument ``backend``."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = [*args]
        place: Any = values if len(values) > position else kwargs
        key: Any = position if len(values) > position else "backend"
        backend = str(place[key] if place is values else kwargs.get(key)).lower()
        if "nccl" in backend:
            note('backend="nccl"')
            place[key] = "gloo"
        if "smddp" not in backend:  # its stub rejects this argument itself
            kwargs.pop("device_id", None)
        return function(*values, **kwargs)

    return call


class AfterImport(importlib.abc.MetaPathFinder):
    """Lets CHOOSERS choose the CPU, once their module is imported."""

    def __init__(self) -> None:
        self.waiting = dict(CHOOSERS)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        kind = self.waiting.pop(name, None)
        spec = importlib.util.find_spec(name) if kind else None
        if kind and spec and spec.loader:
            execute = spec.loader.exec_module

            def load(module: Any) -> None:
                execute(module)
                chooser = getattr(module, kind, None)
                if chooser:
                    chooser.__init__ = WRAPPERS.get(kind, connected)(chooser.__init__)
                check = "_check_strategy_and_fallback"
                if hasattr(chooser, check):
                    setattr(chooser, check, lenient(getattr(chooser, check)))

            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec


def accelerated(init: Callable[..., None]) -> Callable[..., None]:
    """``PartialState.__init__`` with ``cpu=True``, without which Accelerate makes no group here."""

    @functools.wraps(init)
    def call(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        if not cpu:
            note("Accelerate")
        init(self, True, **kwargs)

    return call


def sharded(init: Callable[..., None]) -> Callable[..., None]:
    """FSDP1's ``__init__`` with the CPU as ``device_id``, without which it looks for a GPU.

    It would also free the weights that it offloads, as if the CPU had a copy (``offload_to_cpu``),
    and broadcast those of rank 0 only from a GPU (``sync_module_states``). Groups of HYBRID_SHARD
    are as large as a host has devices.
    """
    processes = max(1, int(os.environ["REHEARSAL_PROCESSES"]))
    torch.cpu.device_count = lambda: processes
    utilities: Any = sys.modules["torch.distributed.fsdp._init_utils"]
    utilities._check_module_states_for_sync_module_states = note

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        note("FullyShardedDataParallel")
        given = inspect.signature(init).bind(self, *args, **kwargs)
        given.arguments |= {"device_id": CPU, "cpu_offload": None}
        init(*given.args, **given.kwargs)
        if self._handle:
            self._handle.to_cpu = contextlib.nullcontext
            if self._handle.uses_sharded_strategy:
                rehearsal_process.facts["sharded"] = True

    return call


def connected(init: Callable[..., None]) -> Callable[..., None]:
    """A connector's ``__init__`` with the CPU for a GPU, and a process for each of its devices."""

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        accelerator = kwargs.get("accelerator")
        name = accelerator if isinstance(accelerator, str) else type(accelerator).__name__
        if name in ("gpu", "cuda", "CUDAAccelerator"):
            note(f'accelerator="{name}"')
            kwargs["accelerator"] = "cpu"
            devices = kwargs.get("devices")
            if isinstance(devices, str) and "," in devices:
                devices = [number for number in devices.split(",") if number.strip()]
            if isinstance(devices, list | tuple):
                kwargs["devices"] = len(devices)
            elif str(devices) in ("auto", "-1", "None"):
                kwargs["devices"] = max(1, int(os.environ["REHEARSAL_PROCESSES"]))
        init(self, *args, **kwargs)

    return call


def lenient(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """A connector's check of its strategy, which allows FSDP only next to a GPU."""

    @functools.wraps(check)
    def call(self: Any) -> None:
        strategy = self._strategy_flag
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        accelerator = self._accelerator_flag
        if "fsdp" in name.lower():
            self._accelerator_flag = "cuda"
        check(self)
        self._accelerator_flag = accelerator

    return call


WRAPPERS = {"FullyShardedDataParallel": sharded, "PartialState": accelerated}
