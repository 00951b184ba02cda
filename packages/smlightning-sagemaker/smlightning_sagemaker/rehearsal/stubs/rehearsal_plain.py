"""Watches how a script without Lightning's Trainer uses torch, and notes ranks, data and weights.

A process is a rank once it joins the process group, or takes a step of an optimizer. Its data is
what DataLoader gives it and, if it has none, what DistributedDataParallel gets.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import rehearsal_cpu
import rehearsal_process
import torch
import torch.distributed as dist
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator

LAUNCHERS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")

facts = rehearsal_process.facts
optimizers: dict[int, torch.optim.Optimizer] = {}  # those that took a step
# The first pass of the DataLoader that gave the last batch: batches, samples, whether it goes on.
passes: dict[int, tuple[Any, list[Any], list[str]]] = {}
ended: set[int] = set()
last: list[int] = []
training: list[int] = []  # the first pass whose batch was followed by a step
inputs: list[Any] = []


def watch() -> None:
    """Watch the process group, DataLoader and DistributedDataParallel."""
    join = joined(rehearsal_cpu.over_gloo(dist.init_process_group, 0))
    for module in (dist, dist.distributed_c10d, dist.device_mesh):
        module.init_process_group = join  # type: ignore[attr-defined]
    dist.destroy_process_group = noting_weights(dist.destroy_process_group)
    Iterator.__next__ = read(Iterator.__next__)  # type: ignore[method-assign]
    kind = torch.nn.parallel.DistributedDataParallel
    kind.forward = called(kind.forward)  # type: ignore[method-assign]


def is_plain() -> bool:
    """Whether no Lightning Trainer was made in this process."""
    return not facts.get("lightning")


def joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """``init_process_group``, after which the process is a rank."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if is_plain():
            note_rank()
        return result

    return call


def note_rank() -> None:
    """Note rank and world size of the process group; without one, the only rank."""
    one = not dist.is_initialized()
    local = [os.environ[name] for name in LAUNCHERS if name in os.environ]
    facts.update(
        rank=0 if one else dist.get_rank(),
        world_size=1 if one else dist.get_world_size(),
        local_rank=int(local[0]) if local else 0,
        node_rank=facts["host"],
        current_host=os.environ.get("SM_CURRENT_HOST", ""),
        main_address=rehearsal_process.main_address(),
    )
    rehearsal_process.save()


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Note the data of a step, and carry out the fault."""
    optimizers[id(optimizer)] = optimizer
    if last and not training:
        training.append(last[0])
    if "rank" not in facts:
        note_rank()
    rehearsal_process.carry_out_fault(facts["steps"], facts["rank"])


def read(following: Callable[..., Any]) -> Callable[..., Any]:
    """``__next__`` of a DataLoader's iterator; digests of its first pass are noted."""

    @functools.wraps(following)
    def call(iterator: Any) -> Any:
        number = id(iterator)
        try:
            batch = following(iterator)
        except StopIteration:
            ended.add(number)  # one with persistent workers begins again
            raise
        if is_plain() and not (training and number not in training):
            last[:] = [number]
            _, batches, samples = passes.setdefault(number, (iterator, [], []))
            if number not in ended:
                rehearsal_process.note_batch(batches, samples, batch)
        return batch

    return call


def called(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` of DistributedDataParallel, whose inputs in training are noted."""

    @functools.wraps(forward)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if is_plain() and module.training and torch.is_grad_enabled():
            rehearsal_process.note_batch(inputs, [], [args, kwargs])
        return forward(module, *args, **kwargs)

    return call


def noting_weights(function: Callable[..., Any]) -> Callable[..., Any]:
    """``destroy_process_group``, which first notes the weights: the process may end unseen."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        finish()
        rehearsal_process.save()
        return function(*args, **kwargs)

    return call


def finish() -> None:
    """Note the data and the final weights: the parameters that the optimizers had."""
    if not is_plain() or "rank" not in facts:
        return
    facts["inputs"] = inputs
    for number in training:
        _, facts["batches"], facts["samples"] = passes[number]
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    parameters = {id(each): each for group in groups for each in group["params"]}
    if any(hasattr(each, "full_tensor") for each in parameters.values()):  # of FSDP2
        facts["sharded"] = True
    elif parameters:
        digests = sorted(map(rehearsal_process.digest, parameters.values()))
        facts["weights"] = f"{rehearsal_process.digest(digests)} trained"
