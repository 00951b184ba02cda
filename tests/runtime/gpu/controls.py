"""Mistakes that a pretended GPU has to notice."""

import threading
from collections.abc import Callable
from typing import Any

import gpu_runs
import pretended
import torch
import torch.distributed as dist
from marked_tensors import Seen

from smlightning.cluster import collectives, fsdp2

Write = Callable[[dict[str, Any]], Any]


def observe(write: Write) -> None:
    """Do each thing on a pretended GPU; records what was seen of it, and an error."""
    machine = pretended.install(gpus=1)
    seen = {}
    for name, action in ACTIONS.items():
        machine.seen, machine.phase, error = Seen(), "step", ""
        try:
            action(machine, torch.ones(4, 4, device="cuda"))
        except (RuntimeError, TypeError) as raised:
            error = str(raised)
        findings = gpu_runs.findings({**machine.seen.as_record(), "steps": 1})
        seen[name] = {"error": error, "findings": findings}
    write(seen)


def sends_all_kinds(x: torch.Tensor) -> None:
    """By the package's own collectives: tensors of the host, of a short type, and with gaps."""
    torch.cuda.set_device(0)
    kinds = [x, x.T, x[:, :2], x.to(torch.int16), torch.arange(3), torch.ones(2, 3).T]
    for tensor in kinds:
        assert torch.equal(collectives.all_sum(tensor).cpu(), tensor.cpu())
    assert collectives.from_each_rank(torch.tensor([1, 2])).tolist() == [[1, 2]]
    assert not collectives.differ([1, 2])
    assert not collectives.any_rank(False)
    module = torch.nn.Module()
    for number, tensor in enumerate(kinds):
        module.register_buffer(f"buffer{number}", tensor)
    fsdp2.send_buffers(module, torch.device("cuda", 0))
    assert all(buffer.is_cuda for buffer in module.buffers())


def on_group(action: Callable[[torch.Tensor], Any]) -> Callable[[Any, torch.Tensor], None]:
    def act(machine: Any, x: torch.Tensor) -> None:
        machine.phase = ""  # who reads an answer waits for it
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        try:
            action(x)
        finally:
            dist.destroy_process_group()

    return act


def in_thread(action: Callable[[], Any]) -> Callable[[Any, torch.Tensor], None]:
    def act(machine: Any, x: torch.Tensor) -> None:
        thread = threading.Thread(target=action, name="writer")
        thread.start()
        thread.join()

    return act


def synchronize_event() -> None:
    torch.cuda.Event().synchronize()


ACTIONS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "item": lambda machine, x: x.sum().item(),
    "truth": lambda machine, x: bool(x.sum() > 1),
    "tolist": lambda machine, x: x.tolist(),
    "cpu": lambda machine, x: x.cpu(),
    "mask": lambda machine, x: x[x > 0],
    "index of the host": lambda machine, x: x[torch.tensor([0, 1])],
    "nonzero": lambda machine, x: x.nonzero(),
    "bincount": lambda machine, x: x.long().flatten().bincount(),
    "numbers": lambda machine, x: torch.tensor([1.0, 2.0], device="cuda"),
    "pageable": lambda machine, x: torch.ones(3).to("cuda", non_blocking=True),
    "blocking": lambda machine, x: torch.ones(3).pin_memory().to("cuda"),
    "sum of two devices": lambda machine, x: x + torch.ones(4, 4),
    "product of two devices": lambda machine, x: torch.nn.Linear(4, 4)(x),
    "collectives": on_group(sends_all_kinds),
    "collective of the host": on_group(lambda x: dist.all_reduce(torch.ones(3))),
    "collective of int16": on_group(lambda x: dist.broadcast(x.to(torch.int16), 0)),
    "collective of a transpose": on_group(lambda x: dist.broadcast(x[:, :2], 0)),
    "thread": in_thread(synchronize_event),
}
