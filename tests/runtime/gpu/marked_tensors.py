"""CPU tensors that pretend to lie on GPUs.

Such a tensor has a mark on its storage. A function mode answers what Python asks of a tensor's
device; a dispatch mode marks what operations return, autograd's and optimizers' too. What a GPU
would not take, or would be slow at, is noted with its place; the CPU computes on.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
LIBRARIES = str(Path(torch.__file__).parents[1])

# The host waits for the GPU to learn a value, or how large a result is.
WAITING = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim"}
    | {"unique_consecutive", "equal", "is_nonzero", "bincount"}
)
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
TENSOR: Any = torch.Tensor
OF_A_TENSOR = {  # its device, as Python asks for it
    TENSOR.device.__get__: lambda device: device,
    TENSOR.is_cuda.__get__: lambda device: device.type == "cuda",
    TENSOR.is_cpu.__get__: lambda device: device.type == "cpu",
    TENSOR.get_device: lambda device: -1 if device.index is None else device.index,
}
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


@dataclass
class Seen:
    """Events that were recorded, each with its count."""

    waits: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # phase, what, place
    mixed: Counter[tuple[str, str]] = field(default_factory=Counter)  # operation, place
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)  # problem, place
    threads: Counter[tuple[str, str]] = field(default_factory=Counter)  # function, thread's name
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
    frame: FrameType | None = sys._getframe(1)
    own: list[str] = []
    library = ""
    while frame and len(own) < 4:
        path = frame.f_code.co_filename
        line = f"{path.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        if path.startswith(LIBRARIES):
            is_torch = path.startswith(f"{LIBRARIES}/torch/")
            library = library or ("" if is_torch else line)
        elif not path.startswith((sys.base_prefix, "<")) and path != __file__:
            own.append(line)
        frame = frame.f_back
    return " < ".join(own) or library or "unknown"


def storage_marks(tensor: torch.Tensor) -> dict[str, Any]:
    """Marks of a tensor's storage (of its local part for a DTensor).

    A tensor without storage gets a dictionary that nothing keeps.
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
            return OF_A_TENSOR[func](gpu_of(args[0]) or TENSOR.device.__get__(args[0]))
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
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*rest, **kwargs)
        here = gpu_of(tensor) or CPU
        target = here if device is None else self.machine.device(device)
        if rest and isinstance(rest[0], torch.Tensor):
            target = gpu_of(rest[0]) or CPU
        wanted: dict[str, Any] = {"dtype": dtype or tensor.dtype, "copy": copies or target != here}
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
    """Marks results; notes mixed devices, waits and collectives."""

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
            self._note(name, args, given, gpus)
        out = func(*args, **kwargs)
        target = self._target(named, first)
        storages = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in tensors_in(out):
            is_new = tensor.untyped_storage()._cdata not in storages
            if target and is_new and tensor.device.type == "cpu":
                mark(tensor, target)
            if pins:
                storage_marks(tensor)["pinned"] = True
        return out

    def _target(
        self, named: torch.device | None, first: torch.device | None
    ) -> torch.device | None:
        """The device of new tensors."""
        if named is not None and named.type == "cuda":
            return self.machine.device(named)
        if self.machine.asked is not None:
            return self.machine.asked
        return first or self.machine.inherited

    def _note(
        self,
        name: str,
        args: Any,
        given: list[torch.Tensor],
        gpus: list[torch.device | None],
    ) -> None:
        machine = self.machine
        if name in WAITING:
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


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    storage_marks(copy)["pinned"] = True
    return copy
