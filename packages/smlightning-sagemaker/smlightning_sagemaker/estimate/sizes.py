"""Bytes of a model and of a training step, on a rank and on a host.

Weights, gradients and optimizer state are float32, in mixed precision too: autocast computes with
copies of the weights. FSDP divides all three by the number of ranks (Rajbhandari et al. 2020,
*ZeRO*, section 3.1 and figure 1).

A host keeps the last checkpoint's copy and the best weights, pinned if it has GPUs; the weights of
all its ranks when they are built and, with ddp, again when Lightning's Strategy.teardown moves them
there. Without GPUs all of the training is in main memory. Memory-mapped files (prepared data) are
not counted: the system takes such pages back when it needs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlightning.training.allocator import EXACT_ABOVE_MB

Memory = dict[str, int]  # purpose → bytes
MIB = 2**20
# Measured on Linux with torch 2.13, by benchmarks/estimate.py:
PROGRAMS = 128 * MIB  # code of libraries, which all processes of a host share
LAUNCHER = 144 * MIB  # torchrun, which starts several ranks
LOOP = 16 * MIB  # of a rank, for the training loop and loggers
DRAWING = 150 * MIB  # matplotlib on a fresh host, by rank 0, after training
WORKER = 32 * MIB  # of a loader's process, which shares most with its rank
# Host memory of a rank on a GPU for the driver's context and NCCL's buffers. An assumption:
# pytorch#12873 measured about 1 GiB, before CUDA loaded kernels lazily.
CUDA = 1024 * MIB
PREFETCHED = 2  # batches per loader worker (torch's prefetch_factor)
STATE = ("parameters", "gradients", "optimizer", "buffers")  # follow from shapes, without a step
COPIES = ("weights", "gradients", "optimizer", "snapshot", "best")  # the same of a host


@dataclass(frozen=True)
class Linear:
    """Bytes that grow with a rank's batch: ``fixed + per_sample × batch_size``."""

    fixed: int
    per_sample: int

    def at(self, batch_size: int) -> int:
        return self.fixed + self.per_sample * batch_size


@dataclass(frozen=True)
class Sizes:
    """Bytes of a whole model and of one training step."""

    parameters: int  # how many
    trainable: int  # how many of them
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    weights_bytes: int  # in a checkpoint
    root_bytes: int  # parameters outside of blocks, which FSDP keeps gathered for the whole step
    block_bytes: int  # parameters of the largest block, which FSDP gathers when it computes
    activations: Linear  # kept by the forward pass for the backward pass
    temporary: Linear  # more at the step's peak: logits, gradients of activations
    pinned: float  # bytes of pinned memory for a byte of a checkpoint
    sample_bytes: int  # of a sample in a batch
    process_bytes: int  # of a process that has built the network, without its tensors

    @property
    def checkpoint_bytes(self) -> int:
        """Weights and optimizer state in a checkpoint."""
        return self.weights_bytes + self.optimizer_bytes

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sizes":
        lines = {name: Linear(**values[name]) for name in ("activations", "temporary")}
        return cls(**{**values, **lines})


@dataclass(frozen=True)
class Run:
    """Facts about a job's training on which its memory depends."""

    batch_size: int  # samples per rank and batch
    ranks: int
    shards: int = 1  # ranks that share one copy of the state (--strategy fsdp); 1: each has its own
    mixed: bool = False  # computes in 16 bits
    accumulate: int = 1  # batches per optimizer step

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.ranks * self.accumulate


def memory(sizes: Sizes, run: Run) -> Memory:
    """Bytes that a rank holds at the peak of a training step.

    FSDP2 gathers a block when it computes, and the next one at the same time; parameters outside of
    blocks stay gathered for the whole step (``fully_shard``'s documentation: the root is not
    resharded after the forward pass). In mixed precision it gathers 16 bits, and so needs no copies
    of weights, which are ``activations.fixed`` otherwise; ``temporary.fixed`` are whole gradients
    of weights.
    """
    gathered = 0
    activations = sizes.activations.at(run.batch_size)
    temporary = sizes.temporary.at(run.batch_size)
    if run.shards > 1:
        share = 0.5 if run.mixed else 1.0
        whole = sizes.root_bytes + 2 * sizes.block_bytes
        gradient = max(sizes.block_bytes, sizes.root_bytes)  # before it is divided, in float32
        gathered = int(share * whole) + gradient
        activations = sizes.activations.per_sample * run.batch_size
        temporary = sizes.temporary.per_sample * run.batch_size
    return {
        "parameters": -(-sizes.parameter_bytes // run.shards),
        "gradients": -(-sizes.gradient_bytes // run.shards),
        "optimizer": -(-sizes.optimizer_bytes // run.shards),
        "buffers": sizes.buffer_bytes,
        "gathered": gathered,
        "activations": activations,
        "temporary": temporary,
    }


def host_memory(sizes: Sizes, run: Run, ranks: int, workers: int, gpus: bool) -> Memory:
    """Bytes of main memory that the job's first host holds at its peak.

    With ddp, rank 0 writes checkpoints and keeps the best weights; with FSDP each rank does so for
    its shard, and rank 0 has all weights when it builds the network and when it saves the model.

    Not counted: buffers of gloo while FSDP gathers on CPUs, and for a moment a second copy of the
    best weights if the next validation is better before these are written.

    Args:
        sizes: of the model.
        run: how the job trains.
        ranks: of this host.
        workers: loader processes of each rank.
        gpus: whether it trains on GPUs.
    """
    divided = run.shards > 1
    held = memory(sizes, run)
    ready = ranks * workers * (WORKER + PREFETCHED * run.batch_size * sizes.sample_bytes)
    if gpus:
        training = {"weights": sizes.parameter_bytes * (1 if divided else ranks)}
    else:
        training = {
            "weights": (held["parameters"] + held["buffers"]) * ranks,
            "gradients": held["gradients"] * ranks,
            "optimizer": held["optimizer"] * ranks,
            "activations": (held["gathered"] + held["activations"] + held["temporary"]) * ranks,
        }
    freed = training.get("gradients", 0) + training.get("activations", 0) + ready
    process = sizes.process_bytes + LOOP + (CUDA if gpus else 0)
    started = PROGRAMS + (LAUNCHER if ranks > 1 else 0) + ranks * process
    pinned = sizes.pinned if gpus else 1.0
    writing = min(ranks, run.shards) / run.shards
    keeping = ranks / run.shards if divided else 1
    return {
        "processes": started + max(DRAWING - freed, 0),
        "workers": ready,
        **training,
        "snapshot": int(pinned * writing * sizes.checkpoint_bytes),
        "best": int(pinned * keeping * sizes.weights_bytes),
    }


def total(held: Memory, *names: str) -> int:
    """Bytes of these purposes; without names, of all purposes."""
    return sum(size for name, size in held.items() if not names or name in names)


def pinned_block(size: int) -> int:
    """Bytes that torch pins for a tensor: a power of two (CachingHostAllocator.h), or its own size
    from torch 2.13 on if it is larger than EXACT_ABOVE_MB.
    """
    return size if size > EXACT_ABOVE_MB * MIB or not size else 1 << (size - 1).bit_length()


def pinned_share(tensors: Sequence[int]) -> float:
    """Bytes of pinned memory for a byte of tensors that have these sizes."""
    return sum(map(pinned_block, tensors)) / sum(tensors) if any(tensors) else 1.0


def gib(size: float) -> str:
    """Bytes in GiB, or in MiB below a tenth of a GiB."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 / 10 else f"{size / MIB:,.1f} MiB"
