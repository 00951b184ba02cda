"""Registers the backend "smddp": gloo that refuses whatever SMDDP's documentation does not allow in a DDP job.

Refused: reductions other than SUM, a second process group or backend, `barrier(device_ids=…)`, `device_id`,
`_allgather_base`, and every collective but all_reduce, broadcast, all_gather and barrier.
"""

import functools
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist


def refuse(what: str) -> RuntimeError:
    """The error as SMDDP words it, also noted for the report."""
    if "REHEARSAL_EVIDENCE" in os.environ:
        note = Path(os.environ["REHEARSAL_EVIDENCE"]) / f"refused-{os.getpid()}"
        note.write_text(f"SMDDP does not support: {what}")
    return RuntimeError(f"SMDDP does not support: {what} (stub)")


class Stub(dist.ProcessGroup):
    """A process group that hands the allowed collectives to gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "smddp"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        if op != dist.ReduceOp.SUM:
            raise refuse(f"ReduceOp {op}")
        return self._gloo.allreduce(tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return self._gloo.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._gloo.allgather(outputs, inputs, opts or dist.AllgatherOptions())

    def barrier(self, opts: Any = None) -> Any:
        if getattr(opts, "device_ids", None):
            raise refuse(f"barrier(device_ids={opts.device_ids})")
        return self._gloo.barrier(dist.BarrierOptions())

    def __getattribute__(self, name: str) -> Any:
        if name in REFUSED:
            raise refuse(name)
        return super().__getattribute__(name)


REFUSED = (  # methods of torch.distributed.ProcessGroup
    *("_allgather_base", "_reduce_scatter_base", "all_gather_single", "allgather_coalesced", "allreduce_coalesced"),
    *("allgather_into_tensor_coalesced", "alltoall", "alltoall_base", "gather", "monitored_barrier", "recv"),
    *("recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
    *("scatter", "send", "split_group"),
)


new_group, init_process_group = dist.new_group, dist.init_process_group


@functools.wraps(new_group)
def _new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    if "smddp" in str(backend).lower() or (dist.is_initialized() and dist.get_backend() == "smddp"):
        raise refuse("a second process group, new_group()")
    return new_group(ranks, timeout, backend, *args, **kwargs)


@functools.wraps(init_process_group)
def _init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    asked = str(backend).lower()
    if "smddp" in asked and asked != "smddp":
        raise refuse(f"another backend beside it, {asked}")
    if asked == "smddp" and kwargs.get("device_id") is not None:
        raise refuse("device_id")
    return init_process_group(backend, *args, **kwargs)


dist.Backend.register_backend("smddp", Stub, devices=["cpu", "cuda"])
for module in (dist, dist.distributed_c10d):
    module.new_group, module.init_process_group = _new_group, _init_process_group
