"""A machine without GPUs that pretends to have some, for a process of its own.

A "cuda" tensor is a CPU tensor whose storage has a mark. A function mode answers what Python asks
of a tensor's device; a dispatch mode marks what operations return, autograd's and optimizers' too.
NCCL is gloo, held to NCCL's documented limits. What a GPU would not take, or would be slow at, is
noted with its place; the computation goes on, on the CPU.

It cannot show: streams that overlap, kernels, memory, and pinned memory that the driver copies.
"""

import functools
import sys
import sysconfig
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAME = "pretended GPU (CPU tensors with a mark, gloo for NCCL)"
CPU = torch.device("cpu")
LIBRARIES = sysconfig.get_path("purelib")

# The host waits for the GPU to learn a value, or how large a result is.
WAITING = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim"}
    | {"unique_consecutive", "equal", "is_nonzero", "bincount"}
)
ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
# They take an index or a source from another device; other operations take numbers only.
MIXING = frozenset(
    {"copy_", "_to_copy", "set_", "_foreach_copy_", "index", "index_put", "index_put_"}
    | {"_index_put_impl_"}
)
ON_GPUS = ("nccl", "smddp")  # backends that send what lies on GPUs
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html
NCCL_TYPES = frozenset(
    {torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
OF_PYTHON_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
OF_A_TENSOR = {  # its device, as Python asks for it
    torch.Tensor.device.__get__: lambda device: device,
    torch.Tensor.is_cuda.__get__: lambda device: device.type == "cuda",
    torch.Tensor.is_cpu.__get__: lambda device: device.type == "cpu",
    torch.Tensor.get_device: lambda device: -1 if device.index is None else device.index,
}
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


@dataclass
class Seen:
    """What was noted, each with a count."""

    waits: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # phase, what, place
    mixed: Counter[tuple[str, str]] = field(default_factory=Counter)  # operation, place
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)  # problem, place
    threads: Counter[tuple[str, str]] = field(default_factory=Counter)  # function, thread's name
    launches: Counter[str] = field(default_factory=Counter)  # by operation
    sent: Counter[str] = field(default_factory=Counter)  # collectives by operation

    def as_record(self) -> dict[str, list[list[Any]]]:
        """The same as JSON has it."""
        return {
            name: [[*(key if isinstance(key, tuple) else (key,)), count] for key, count in counts]
            for name, counts in ((name, getattr(self, name).items()) for name in vars(self))
        }


@dataclass
class Machine:
    """The pretended GPUs of this process, and what was seen of them.

    Attributes:
        phase: what waits are noted under; empty: they are not noted.
        asked: the device that the Python call in progress asks for.
        inherited: the device of that call's tensors; what C++ allocates in it lies there.
    """

    gpus: int
    seen: Seen = field(default_factory=Seen)
    phase: str = ""
    asked: torch.device | None = None
    inherited: torch.device | None = None
    backend: str = ""
    thread: threading.local = field(default_factory=threading.local)

    def current(self) -> int:
        """The device of this thread; 0 until it is set, as CUDA has it."""
        return getattr(self.thread, "device", 0)

    def device(self, wanted: Any) -> torch.device:
        """A device with its number."""
        if isinstance(wanted, int):
            return torch.device("cuda", wanted)
        device = torch.device(wanted)
        if device.type == "cuda" and device.index is None:
            return torch.device("cuda", self.current())
        return device

    def wait(self, what: str) -> None:
        """Note that the training waits; other threads may."""
        if self.phase and threading.current_thread() is threading.main_thread():
            self.seen.waits[self.phase, what, place()] += 1

    def uses_current_device(self, function: str) -> None:
        """Note a call that acts on the current device, in a thread that has not set it."""
        if not hasattr(self.thread, "device"):
            self.seen.threads[function, threading.current_thread().name] += 1

    @contextmanager
    def allocating(self, inherited: torch.device | None, asked: Any = None) -> Iterator[None]:
        """While a call is in progress: where its new tensors lie."""
        before = self.inherited, self.asked
        self.inherited, self.asked = inherited, asked
        try:
            yield
        finally:
            self.inherited, self.asked = before


def place() -> str:
    """The innermost three lines that are no library's and not this file's, innermost first; where
    there are none, the innermost of a library other than torch.
    """
    frame = sys._getframe(1)
    own, library = [], ""
    while frame and len(own) < 3:
        path = frame.f_code.co_filename
        line = f"{path.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        if path.startswith(LIBRARIES):
            is_torch = path.startswith(f"{LIBRARIES}/torch/")
            library = library or ("" if is_torch else line)
        elif not path.startswith((sys.base_prefix, "<")) and path != __file__:
            own.append(line)
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(own) or library or "unknown"


def storage_marks(tensor: torch.Tensor) -> dict[str, Any]:
    """What is marked on a tensor's storage, for a DTensor on its part's; for a tensor without one,
    a dictionary that nobody keeps.
    """
    tensor = getattr(tensor, "_local_tensor", tensor)
    try:
        return tensor.untyped_storage().__dict__
    except (NotImplementedError, RuntimeError):
        return {}


def gpu_of(tensor: torch.Tensor) -> torch.device | None:
    return storage_marks(tensor).get("gpu")


def mark(tensor: torch.Tensor, device: torch.device | None) -> None:
    marks = storage_marks(tensor)
    marks.pop("gpu", None)
    if device is not None and device.type == "cuda":
        marks["gpu"] = device


def is_pinned(tensor: torch.Tensor) -> bool:
    return bool(storage_marks(tensor).get("pinned"))


def tensors_in(*items: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(items) if isinstance(leaf, torch.Tensor)]


class Calls(TorchFunctionMode):
    """Devices as Python names and asks for them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in OF_A_TENSOR:
            return OF_A_TENSOR[func](gpu_of(args[0]) or torch.Tensor.device.__get__(args[0]))
        if func is torch.Tensor.backward:  # what runs in it asks for devices, too
            kwargs["grad_tensors"] = kwargs.pop("gradient", None)
            with self, self.machine.allocating(gpu_of(args[0])):
                return torch.autograd.backward(*args, **kwargs)
        if func in MOVES:
            return self._move(func, args, kwargs)
        given = tensors_in(args, kwargs)
        gpu = next(filter(None, map(gpu_of, given)), None)
        if func is torch.Tensor.numpy and gpu:
            raise TypeError(f"can't convert {gpu} device type tensor to numpy")
        if func is torch.Tensor.tolist and gpu:
            self.machine.wait("tolist")
        if func is torch.Tensor.pin_memory:
            return pinned(args[0])
        if func is torch.Tensor.is_pinned:
            return is_pinned(args[0])
        asked = kwargs.get("device")
        pins = kwargs.pop("pin_memory", False)
        if asked is not None:
            asked = self.machine.device(asked)
            kwargs["device"] = CPU if asked.type == "cuda" else asked
        with self.machine.allocating(gpu, asked):
            out = func(*args, **kwargs)
        if func in OF_PYTHON_NUMBERS:
            target = asked or (gpu if func is torch.Tensor.new_tensor else None)
            out = self._of_numbers(out, args[0], target)
        if pins:
            storage_marks(out)["pinned"] = True
        return out

    def _of_numbers(self, out: torch.Tensor, given: Any, target: torch.device | None) -> Any:
        is_there = isinstance(given, torch.Tensor) and gpu_of(given)
        if target is None or target.type != "cuda" or is_there:
            return out
        self.machine.wait("numbers of Python to the GPU")
        moved = out.clone()
        mark(moved, target)
        return moved

    def _move(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """``tensor.to``, ``cpu`` and ``cuda``: a copy where the device is another one."""
        tensor, *rest = args
        if func is torch.Tensor.cpu:
            rest = ["cpu", *rest]
        elif func is torch.Tensor.cuda:
            rest = rest or ["cuda"]
        copies = kwargs.pop("copy", False)
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*rest, **kwargs)
        here = gpu_of(tensor) or CPU
        target = here if device is None else self.machine.device(device)
        if rest and isinstance(rest[0], torch.Tensor):
            target = gpu_of(rest[0]) or CPU
        wanted: dict[str, Any] = {"dtype": dtype or tensor.dtype, "copy": copies or target != here}
        if layout is not None:
            wanted["memory_format"] = layout
        if "meta" in (target.type, tensor.device.type):
            return torch.Tensor.to(tensor, device=target, **wanted)
        with self.machine.allocating(None, target):  # of a DTensor this moves its part
            out = torch.Tensor.to(tensor, **wanted)
        if target != here:
            self._note_copy(tensor, here, target, non_blocking)
        return out

    def _note_copy(
        self, tensor: torch.Tensor, here: torch.device, target: torch.device, non_blocking: bool
    ) -> None:
        if target.type == "cpu":  # torch waits unless it is told not to, and then all is unsure
            self.machine.wait("copy to the host")
        elif here.type == "cpu" and not (non_blocking and is_pinned(tensor)):
            self.machine.wait("copy of memory that is not pinned, or not non_blocking")


class Operations(TorchDispatchMode):
    """Marks results; notes mixed devices, waits, launches and collectives."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE):
            return func(*args, **kwargs)  # DTensor asks what an operation's result is like
        plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if any(kind not in plain for kind in types):
            return NotImplemented  # a DTensor's own: it comes again with its part
        namespace, _, name = func._schema.name.partition("::")
        given = tensors_in(args, kwargs)
        if namespace == "c10d" or namespace == "_c10d_functional":
            self._check_collective(name, given)
            out = func(*args, **kwargs)
            if namespace == "_c10d_functional":  # a result of its own
                for tensor in tensors_in(out):
                    mark(tensor, gpu_of(given[0]))
            return out
        named = kwargs.get("device")
        if named is not None and named.type == "cuda":  # of C++, or of Python in a mode's shadow
            kwargs["device"] = CPU
        pins = kwargs.pop("pin_memory", False)
        gpus = [gpu_of(tensor) for tensor in given]
        first = next(filter(None, gpus), None)
        if first:
            self._note(name, func, args, given, gpus)
        out = func(*args, **kwargs)
        target = self._target(named, first)
        storages = {storage_key(tensor) for tensor in given}
        for tensor in tensors_in(out):
            if target and storage_key(tensor) not in storages and tensor.device.type == "cpu":
                mark(tensor, target)
            if pins:
                storage_marks(tensor)["pinned"] = True
        return out

    def _target(
        self, named: torch.device | None, first: torch.device | None
    ) -> torch.device | None:
        """Where new tensors lie."""
        if named is not None and named.type == "cuda":
            return self.machine.device(named)
        if self.machine.asked is not None:
            return self.machine.asked
        return first or self.machine.inherited

    def _note(
        self,
        name: str,
        func: Any,
        args: Any,
        given: list[torch.Tensor],
        gpus: list[torch.device | None],
    ) -> None:
        machine = self.machine
        if name in WAITING:
            machine.wait(name)
        if name == "repeat_interleave" and len(given) > 1:
            machine.wait(name)
        if name in ("index", "index_put", "index_put_"):
            indices = tensors_in(args[1])
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                machine.wait("index by a mask")
            if any(gpu_of(index) is None for index in indices):
                machine.wait("index by a tensor of the host")
        if name == "copy_" and gpu_of(args[0]) != gpu_of(args[1]):
            host = args[1] if gpu_of(args[0]) else args[0]
            non_blocking = len(args) > 2 and args[2]
            if not (non_blocking and is_pinned(host)):
                machine.wait("copy that is not non_blocking, or not of pinned memory")
        large = {gpu for tensor, gpu in zip(given, gpus, strict=True) if tensor.ndim}
        if name not in MIXING and len(large) > 1:
            machine.seen.mixed[name, place()] += 1
        if machine.phase and not func.is_view and name not in ALLOCATIONS:
            machine.seen.launches[name] += 1

    def _check_collective(self, name: str, given: list[torch.Tensor]) -> None:
        """Note what NCCL rejects."""
        seen = self.machine.seen
        seen.sent[name] += 1
        sends_nothing = name.startswith(("barrier", "wait_tensor", "monitored", "_wrap"))
        if self.machine.backend not in ON_GPUS or sends_nothing:
            return
        for tensor in given:
            if not tensor.numel():
                continue
            if gpu_of(tensor) is None:
                seen.collectives[f"{name} of a CPU tensor", place()] += 1
            if tensor.dtype not in NCCL_TYPES:
                seen.collectives[f"{name} of {tensor.dtype}", place()] += 1
            if not tensor.is_contiguous():
                seen.collectives[f"{name} of a tensor that is not contiguous", place()] += 1


def storage_key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    storage_marks(copy)["pinned"] = True
    return copy


def install(gpus: int) -> Machine:
    """Make this process believe that it has so many GPUs, until it ends."""
    machine = Machine(gpus)
    _replace_cuda(machine)
    _replace_distributed(machine)
    torch.Tensor.pin_memory = lambda self, device=None: pinned(self)  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda self, device=None: is_pinned(self)  # type: ignore[method-assign]
    Calls(machine).__enter__()
    Operations(machine).__enter__()
    return machine


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

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


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

    def query(self) -> bool:
        self.machine.uses_current_device("Event.query")
        return True

    def wait(self, stream: Any = None) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        return 1.0


class StreamContext:
    def __init__(self, stream: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


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

    def manual_seed(seed: int) -> None:
        machine.uses_current_device("manual_seed")

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
        "manual_seed": manual_seed,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: state,
        "set_rng_state": lambda new, device=None: None,
        "get_rng_state_all": lambda: [state] * machine.gpus,
        "set_rng_state_all": lambda new: None,
        "Event": Event,
        "Stream": Stream,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "current_stream": on_current("current_stream", Stream(0)),
        "default_stream": on_current("default_stream", Stream(0)),
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
    torch.version.cuda = "12.8"
    torch.cuda.nccl.version = lambda: (2, 27, 5)  # type: ignore[method-assign]
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    torch.accelerator.set_device_index = set_device
    torch.accelerator.current_stream = Stream
    torch.accelerator.current_device_index = machine.current
    _replace_autocast()


def _replace_autocast() -> None:
    """Of a GPU it is the CPU's, with the same type."""
    begin = torch.amp.autocast_mode.autocast.__init__

    def of_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    torch.amp.autocast_mode.autocast.__init__ = of_cpu  # type: ignore[method-assign]


def _replace_distributed(machine: Machine) -> None:
    """NCCL and SMDDP are gloo, whose groups say that they are not."""
    from torch.distributed import distributed_c10d as c10d

    begin, get_backend, barrier = dist.init_process_group, dist.get_backend, dist.barrier

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        machine.backend = str(backend)
        kwargs.pop("device_id", None)
        begin("gloo" if backend == "nccl" else backend, *args, **kwargs)

    def claimed_backend(group: Any = None) -> str:
        real = get_backend(group)
        return machine.backend if real == "gloo" else real

    def plain_barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op) if group else barrier()

    for module in (dist, c10d):
        module.init_process_group = init_process_group  # type: ignore[assignment]
        module.get_backend = claimed_backend  # type: ignore[assignment]
        module.barrier = plain_barrier  # type: ignore[assignment]
    dist.is_nccl_available = lambda: True
    c10d._get_object_coll_device = lambda group=None: (  # type: ignore[assignment]
        "cuda" if machine.backend == "nccl" else "cpu"
    )
    wait = dist.Work.wait

    def wait_for_gloo(work: Any, *args: Any) -> bool:
        """What gloo copies in main memory is not NCCL's."""
        phase, machine.phase = machine.phase, ""
        try:
            return wait(work, *args)
        finally:
            machine.phase = phase

    dist.Work.wait = wait_for_gloo  # type: ignore[method-assign]
    ddp = torch.nn.parallel.DistributedDataParallel
    for name in ("__init__", "_pre_forward", "_post_forward"):  # which allocate buckets in C++
        setattr(ddp, name, _allocating_on_gpu(machine, getattr(ddp, name)))


def _allocating_on_gpu(machine: Machine, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def allocating(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = machine.device("cuda") if machine.backend in ON_GPUS else None
        with machine.allocating(device):
            return method(self, *args, **kwargs)

    return allocating
