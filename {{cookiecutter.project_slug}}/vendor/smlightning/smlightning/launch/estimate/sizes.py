"""Bytes of a model and of a training step, what a rank holds of them, and what makes them fit.

Weights, their gradients and optimizer state are float32 here, in mixed precision too: autocast
computes with copies of the weights. AdamW keeps two numbers per trained weight, so that a trained
weight takes 4 + 4 + 8 bytes; FSDP divides all of these by the number of ranks (Rajbhandari et al.
2020, *ZeRO*, section 3.1 and figure 1, without the fp16 weights and gradients that it has beside
them).
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from smlightning.training.allocator import EXACT_ABOVE_MB

EXACT_ABOVE = EXACT_ABOVE_MB * 2**20
BYTES = 4  # of a float32, in which weights, gradients and optimizer state are kept
STATES = 2  # numbers that AdamW keeps per trained weight
PROCESS = 330 * 2**20  # of a rank that has imported all, with transformers, as measured on Linux
# The share of a GPU's memory that a step may fill. The rest is for CUDA's context, cuBLAS' and
# NCCL's buffers and the allocator's fragments. Assumed: nothing of it shows without a GPU.
USABLE = 0.9


@dataclass(frozen=True)
class Linear:
    """Bytes that grow with a rank's batch: ``fixed + per_sample × batch_size``."""

    fixed: int
    per_sample: int

    def at(self, batch_size: int) -> int:
        return self.fixed + self.per_sample * batch_size


@dataclass(frozen=True)
class Sizes:
    """A whole model, and one training step of it."""

    parameters: int  # numbers
    trainable: int  # of them
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int  # of tensors that are no parameters, as positions are
    checkpoint_bytes: int  # weights and optimizer state, as a checkpoint holds them
    root_bytes: int  # parameters outside of blocks, which FSDP keeps gathered for the whole step
    block_bytes: int  # parameters of the largest block, which FSDP gathers when it computes
    activations: Linear  # kept by the forward pass for the backward pass
    temporary: Linear  # beside them at the step's peak: logits, gradients of activations
    pinned: float = 2.0  # bytes of pinned memory per byte of a checkpoint
    pinned_below_2_13: float = 2.0  # the same with a torch before 2.13
    sample_bytes: int = 0  # of a sample in a batch
    process_bytes: int = PROCESS  # of a process that has built the network, without its tensors

    @property
    def saved_weights(self) -> int:
        """Bytes of the weights in a checkpoint: of adapters these alone."""
        return self.checkpoint_bytes - self.optimizer_bytes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sizes":
        """Raises TypeError or KeyError where ``values`` are of another version's form."""
        lines = {name: Linear(**values[name]) for name in ("activations", "temporary")}
        return cls(**{**values, **lines})


@dataclass(frozen=True)
class Run:
    """How a job trains, as far as memory depends on it."""

    batch_size: int  # samples per rank and batch
    ranks: int
    shards: int = 1  # ranks that share one copy of the state (--strategy fsdp); 1: each has its own
    mixed: bool = False  # computes in 16 bits
    accumulate: int = 1  # batches per optimizer step

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.ranks * self.accumulate


@dataclass(frozen=True)
class Memory:
    """Bytes that a rank holds at the peak of a training step."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    gathered: int  # by FSDP, for the blocks that compute
    activations: int
    temporary: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def certain(self) -> int:
        """What is counted from shapes alone, whatever the batch."""
        return self.parameters + self.gradients + self.optimizer + self.buffers


def memory(sizes: Sizes, run: Run) -> Memory:
    """What a rank holds at the peak of a step.

    FSDP2 gathers a block when it computes, and the next one beside it; what is in no block stays
    gathered for the whole step (``fully_shard``'s documentation: the root is not resharded after
    the forward pass). In mixed precision it gathers 16 bits, and so needs no copies of weights,
    which are ``activations.fixed`` else.
    """
    gathered = 0
    activations = sizes.activations.at(run.batch_size)
    if run.shards > 1:
        share = 0.5 if run.mixed else 1.0
        whole = sizes.root_bytes + 2 * sizes.block_bytes
        gradient = max(sizes.block_bytes, sizes.root_bytes)  # before it is divided, in float32
        gathered = int(share * whole) + gradient
        activations = sizes.activations.per_sample * run.batch_size
    return Memory(
        parameters=-(-sizes.parameter_bytes // run.shards),
        gradients=-(-sizes.gradient_bytes // run.shards),
        optimizer=-(-sizes.optimizer_bytes // run.shards),
        buffers=sizes.buffer_bytes,
        gathered=gathered,
        activations=activations,
        temporary=sizes.temporary.at(run.batch_size),
    )


def pinned_block(size: int, exact_above: float = EXACT_ABOVE) -> int:
    """Bytes that torch pins for a tensor of ``size``: a power of two (CachingHostAllocator.h), or
    no more than it has, where it is larger than ``exact_above``.
    """
    return size if size > exact_above or not size else 1 << (size - 1).bit_length()


def pinned_share(tensors: Sequence[int], exact_above: float = EXACT_ABOVE) -> float:
    """Bytes of pinned memory per byte of tensors that have so many bytes each."""
    pinned = sum(pinned_block(size, exact_above) for size in tensors)
    return pinned / sum(tensors) if any(tensors) else 1.0


def usable(gpu_memory: int) -> int:
    """Bytes of a GPU's memory that a step may fill."""
    return int(USABLE * gpu_memory)


def largest_batch(sizes: Sizes, run: Run, gpu_memory: int) -> int:
    """The largest ``batch_size`` that fits; 0 where a single sample does not."""
    none = memory(sizes, replace(run, batch_size=0)).total
    one = memory(sizes, replace(run, batch_size=1)).total
    room = usable(gpu_memory) - none
    if room < 0:
        return 0
    return room // (one - none) if one > none else run.batch_size


@dataclass(frozen=True)
class Way:
    """Options with which a job fits."""

    options: dict[str, Any]
    batch_size: int  # the largest that fits, or the job's own where that fits

    def __str__(self) -> str:
        return " ".join(f"--{name} {_shown(value)}" for name, value in self.options.items())


def ways(
    variants: Mapping[frozenset[tuple[str, Any]], Sizes],
    run: Run,
    gpu_memory: int,
    may_shard: bool = True,
) -> list[Way]:
    """The ways to make a job fit: the fewest changes that keep the batch, then smaller batches.

    Args:
        variants: the model's sizes by the options that are changed, as ("lora_rank", 8); those of
            the job itself have the key ``frozenset()``.
        run: as the job trains.
        gpu_memory: bytes of one GPU.
        may_shard: whether more ranks can share one copy of the state.

    A smaller batch comes with the accumulation that keeps the global batch.
    """
    candidates = []
    possible = {run.shards, run.ranks} if may_shard else {run.shards}
    for (changed, sizes), shards in itertools.product(variants.items(), possible):
        options = dict(sorted(changed))
        if shards != run.shards:
            options |= {"strategy": "fsdp"} if run.shards == 1 else {"shard_size": 0}
        largest = largest_batch(sizes, replace(run, shards=shards), gpu_memory)
        candidates.append(Way(options, min(largest, run.batch_size)))
    candidates.sort(key=lambda way: len(way.options))
    unchanged, others = candidates[0], candidates[1:]
    whole = fewest_changes(way for way in others if way.batch_size == run.batch_size)
    smaller = [unchanged] if 0 < unchanged.batch_size < run.batch_size else []
    if not whole:
        smaller += fewest_changes(way for way in others if way.batch_size > unchanged.batch_size)
    return whole + [_accumulated(way, run) for way in smaller]


def fewest_changes(candidates: Iterable[Way]) -> list[Way]:
    """Those of which no other changes a part alone; the candidates are ordered by their number."""
    kept: list[Way] = []
    for way in candidates:
        items = way.options.items()
        if not any(other.options.items() <= items for other in kept):
            kept.append(way)
    return kept


def _accumulated(way: Way, run: Run) -> Way:
    """The smaller batch as an option, with the accumulation that keeps the global batch."""
    batches = math.ceil(run.batch_size * run.accumulate / way.batch_size)
    # The same global batch in equal parts, where these are whole.
    batch_size = math.ceil(run.batch_size * run.accumulate / batches)
    options = {"batch_size": batch_size, "accumulate_grad_batches": batches}
    return Way({**way.options, **options}, batch_size)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def gib(size: float) -> str:
    """Bytes in GiB, or in MiB where that is less than a tenth of one."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"


@dataclass(frozen=True)
class Length:
    """How long a job trains."""

    samples: int  # rows for training in an epoch
    epochs: int
    max_steps: int = -1  # -1: no limit

    def steps(self, run: Run) -> int:
        """Optimizer steps in all; an epoch's last may be of fewer samples."""
        steps = math.ceil(self.samples / run.global_batch) * self.epochs
        return min(steps, self.max_steps) if self.max_steps > 0 else steps

    def hours(self, run: Run, samples_per_second: float) -> float:
        """Of training alone, without validation, checkpoints and the job's start."""
        whole = math.ceil(self.samples / run.global_batch) * self.epochs
        share = self.steps(run) / whole if whole else 0.0
        return self.samples * self.epochs * share / samples_per_second / 3600
