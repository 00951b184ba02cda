"""Registers the backend "smddp": gloo without the calls that SMDDP's documentation excludes.

Excluded in a DDP job: reductions other than SUM, a second process group or backend,
``barrier(device_ids=…)``, ``device_id``, ``_allgather_base``, and every collective but all_reduce,
broadcast, all_gather and barrier.
"""

import functools
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

# Methods of torch.distributed.ProcessGroup.
EXCLUDED = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "split_group",
)


def violation(operation: str) -> RuntimeError:
    """The error in SMDDP's words, which is also noted for the report."""
    sentence = f"SMDDP does not support: {operation}"
    if "REHEARSAL_EVIDENCE" in os.environ:
        note = Path(os.environ["REHEARSAL_EVIDENCE"]) / f"smddp-{os.getpid()}"
        note.write_text(sentence)
    return RuntimeError(f"{sentence} (stub)")


class Stub(dist.ProcessGroup):
    """A process group that hands the allowed collectives to gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "smddp"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        if operation != dist.ReduceOp.SUM:
            raise violation(f"ReduceOp {operation}")
        return self._gloo.allreduce(tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return self._gloo.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._gloo.allgather(
            outputs, inputs, opts or dist.distributed_c10d.AllgatherOptions()
        )

    def barrier(self, opts: Any = None) -> Any:
        if getattr(opts, "device_ids", None):
            raise violation(f"barrier(device_ids={opts.device_ids})")
        return self._gloo.barrier(dist.BarrierOptions())

    def __getattribute__(self, name: str) -> Any:
        if name in EXCLUDED:
            raise violation(name)
        return super().__getattribute__(name)


torchs_new_group = dist.new_group
torchs_init_process_group = dist.init_process_group


@functools.wraps(torchs_new_group)
def new_group(
    ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
) -> Any:
    over_smddp = dist.is_initialized() and dist.get_backend() == "smddp"
    if over_smddp or "smddp" in str(backend).lower():
        raise violation("a second process group, new_group()")
    return torchs_new_group(ranks, timeout, backend, *args, **kwargs)


@functools.wraps(torchs_init_process_group)
def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    name = str(backend).lower()
    if "smddp" in name and name != "smddp":
        raise violation(f"another backend with it, {name}")
    if name == "smddp" and kwargs.get("device_id") is not None:
        raise violation("device_id")
    return torchs_init_process_group(backend, *args, **kwargs)


dist.Backend.register_backend("smddp", Stub, devices=["cpu", "cuda"])
for module in (dist, dist.distributed_c10d):
    module.new_group = new_group
    module.init_process_group = init_process_group
