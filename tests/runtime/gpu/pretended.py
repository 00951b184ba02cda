"""A machine without GPUs that pretends to have some, for a process of its own.

A "cuda" tensor is a CPU tensor with a mark (marked_tensors.py). ``torch.cuda`` has no GPU behind
it. NCCL is gloo, held to NCCL's documented limits.

It cannot show: streams that overlap, kernels, memory, and pinned memory that the driver copies.
"""

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from marked_tensors import ON_GPUS, Calls, Machine, Operations, gpu_of, is_pinned, pinned

NAME = "pretended GPU (CPU tensors with a mark, gloo for NCCL)"


def install(gpus: int) -> Machine:
    """Make this process believe that it has so many GPUs, until it ends."""
    machine = Machine(gpus)
    _replace_cuda(machine)
    _replace_distributed(machine)
    # Here, since modes are a thread's own, and loaders pin in another one.
    replace(
        torch.Tensor,
        pin_memory=lambda self, device=None: pinned(self),
        is_pinned=lambda self, device=None: is_pinned(self),
    )
    Calls(machine).__enter__()
    Operations(machine).__enter__()
    return machine


def replace(owner: Any, **attributes: Any) -> None:
    for name, value in attributes.items():
        setattr(owner, name, value)


class Stream:
    """Work is done as it is called: nothing is ever outstanding."""

    machine: Machine

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = self.machine.device("cuda" if device is None else device)
        self.device_index = self.device.index
        self.cuda_stream = self.stream_id = 0

    def record_event(self, event: Any = None) -> "Event":
        self.machine.uses_current_device("Stream.record_event")
        return event or Event()

    def synchronize(self) -> None:
        self.machine.wait("Stream.synchronize")

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def is_capturing(self) -> bool:
        return False


class Event:
    machine: Machine

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        self.machine.uses_current_device("Event.record")

    def synchronize(self) -> None:
        """It has no device guard (c10/cuda/CUDAEvent.h): it makes a context on the current one."""
        self.machine.uses_current_device("Event.synchronize")
        self.machine.wait("Event.synchronize")


def _replace_cuda(machine: Machine) -> None:
    """Put what the package, Lightning and torch call of ``torch.cuda`` in its place."""
    total = 80 * 2**30
    Stream.machine = Event.machine = machine

    def set_device(device: Any) -> None:
        machine.thread.device = machine.device(device).index

    def on_current(name: str, result: Any = None, waits: bool = False) -> Callable[..., Any]:
        """A function that acts on the current device, unless it is given one."""

        def function(device: Any = None) -> Any:
            if device is None:
                machine.uses_current_device(name)
            if waits:
                machine.wait(name)
            return result

        return function

    properties = types.SimpleNamespace(
        total_memory=total, major=9, minor=0, name="Pretended", multi_processor_count=132
    )
    state = torch.zeros(16, dtype=torch.uint8)
    functions: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: machine.gpus,
        "current_device": machine.current,
        "set_device": set_device,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "max_memory_allocated": on_current("max_memory_allocated", 2**30),
        "memory_stats": on_current("memory_stats", {}),
        "mem_get_info": on_current("mem_get_info", (total, total)),
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": on_current("reset_peak_memory_stats"),
        "synchronize": on_current("synchronize", waits=True),
        "manual_seed": lambda seed: machine.uses_current_device("manual_seed"),
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: state,
        "set_rng_state": lambda new, device=None: None,
        "get_rng_state_all": lambda: [state] * machine.gpus,
        "set_rng_state_all": lambda new: None,
        "Event": Event,
        "Stream": Stream,
        "stream": contextlib.nullcontext,
        "StreamContext": contextlib.nullcontext,
        "current_stream": on_current("current_stream", Stream(0)),
        "default_stream": on_current("default_stream", Stream(0)),
    }
    replace(torch.cuda, **functions)
    group = torch._C._group_tensors_by_device_and_dtype  # of foreach kernels, as in clip_grad_norm_

    def group_by_pretended_device(lists: Any, with_indices: bool = False) -> Any:
        gpu = next((gpu_of(tensor) for tensor in lists[0] if tensor is not None), None)
        groups = group(lists, with_indices)
        return {(gpu or device, dtype): found for (device, dtype), found in groups.items()}

    replace(torch._C, _group_tensors_by_device_and_dtype=group_by_pretended_device)
    replace(torch.cuda.nccl, version=lambda: (2, 27, 5))
    replace(torch.version, cuda="12.8")
    replace(
        torch.accelerator,
        is_available=lambda: True,
        current_accelerator=lambda check_available=False: torch.device("cuda"),
        set_device_index=set_device,
        current_device_index=machine.current,
        current_stream=Stream,
    )
    _replace_autocast()


def _replace_autocast() -> None:
    """Make autocast on the simulated GPU use the CPU's autocast with the same type."""
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    def of_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    replace(autocast, __init__=of_cpu)


def _replace_distributed(machine: Machine) -> None:
    """NCCL and SMDDP are gloo, whose groups say that they are not."""
    from torch.distributed import distributed_c10d as c10d

    begin, get_backend = dist.init_process_group, dist.get_backend
    barrier, wait = dist.barrier, dist.Work.wait

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        machine.backend = str(backend)
        kwargs.pop("device_id", None)
        begin("gloo" if backend == "nccl" else backend, *args, **kwargs)

    def claimed_backend(group: Any = None) -> str:
        real = get_backend(group)
        return machine.backend if real == "gloo" else real

    def plain_barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op) if group else barrier()

    def object_device(group: Any = None) -> str:
        return "cuda" if machine.backend == "nccl" else "cpu"

    def wait_for_gloo(work: Any, *args: Any) -> bool:
        """Do not record gloo's copies in main memory: NCCL makes none."""
        phase, machine.phase = machine.phase, ""
        try:
            return wait(work, *args)
        finally:
            machine.phase = phase

    for module in (dist, c10d):
        replace(
            module,
            init_process_group=init_process_group,
            get_backend=claimed_backend,
            barrier=plain_barrier,
        )
    replace(dist, is_nccl_available=lambda: True)
    replace(c10d, _get_object_coll_device=object_device)
    replace(dist.Work, wait=wait_for_gloo)
    # They allocate DDP's buckets in C++, where no tensor says on which device.
    ddp = torch.nn.parallel.DistributedDataParallel
    for name in ("__init__", "_pre_forward", "_post_forward"):
        setattr(ddp, name, _allocating_on_gpu(machine, getattr(ddp, name)))


def _allocating_on_gpu(machine: Machine, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def allocating(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = machine.device("cuda") if machine.backend in ON_GPUS else None
        with machine.allocating(device):
            return method(self, *args, **kwargs)

    return allocating
