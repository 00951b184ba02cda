"""Bytes of a host's main memory that a job takes: its processes and what each keeps there.

While it trains on GPUs, a host keeps the last checkpoint's copy and the best weights, pinned; and
the weights of all its ranks while these are built and, with ddp, again when Lightning's
Strategy.teardown has moved them there (optimizers stay on their GPUs: cluster/strategies.py). On a
CPU all of the training is there, too. Memory-mapped files (prepared data, a checkpoint that is
read) are not counted: the system takes such pages back when it needs them.
"""

from dataclasses import asdict, dataclass

from smlightning.launch.estimate.sizes import Run, Sizes, memory

MIB = 2**20
# Measured on Linux with torch 2.13, by benchmarks/estimate.py:
PROGRAMS = 128 * MIB  # code of libraries, which all processes of a host share
LAUNCHER = 144 * MIB  # torchrun, which starts several ranks
LOOP = 16 * MIB  # what the training loop and loggers take after the network is built
DRAWING = 150 * MIB  # matplotlib on a fresh host, by rank 0, after training
WORKER = 32 * MIB  # a loader's process, which is forked, so that it shares most with its rank
# Of a rank on a GPU, the driver's context and NCCL's buffers. Assumed: pytorch#12873 measured about
# 1 GiB before CUDA loaded kernels lazily; without a GPU nothing of it shows.
CUDA = 1024 * MIB
PREFETCHED = 2  # batches per loader worker (torch's prefetch_factor)
# The share of a host's memory that a job may fill: the rest is the system's, SageMaker's agents',
# and room for pages of data. Assumed.
USABLE = 0.9


@dataclass(frozen=True)
class Host:
    """The job's first host, on which rank 0 is."""

    ranks: int  # on this host
    workers: int  # of the loaders of each rank
    gpus: bool
    exact: bool = True  # torch pins no more than a large tensor has


@dataclass(frozen=True)
class HostMemory:
    """Bytes of main memory at a job's peak."""

    processes: int
    workers: int  # with the batches that they have ready
    weights: int
    gradients: int  # these and the next two on a CPU only
    optimizer: int
    activations: int
    snapshot: int  # the last checkpoint's copy
    best: int  # the best weights

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def certain(self) -> int:
        """The bytes that follow from shapes, without processes and batches."""
        return self.total - self.processes - self.workers - self.activations


def host_memory(sizes: Sizes, run: Run, host: Host) -> HostMemory:
    """The memory of the job's first host at its peak.

    Without FSDP rank 0 writes and keeps the best weights; with it each rank does so of its shard,
    and rank 0 has all weights when it builds the network, and again when it saves the model.

    Not counted: what gloo keeps while FSDP gathers on CPUs (a BERT of 74 M on two ranks took a
    third more than this), and, for a moment, a second copy of the best weights where the next
    validation is better before these are written.
    """
    divided = run.shards > 1
    of_rank = memory(sizes, run)
    if host.gpus:
        weights = sizes.parameter_bytes * (1 if divided else host.ranks)
        gradients = optimizer = activations = 0
    else:
        weights = (of_rank.parameters + of_rank.buffers) * host.ranks
        gradients = of_rank.gradients * host.ranks
        optimizer = of_rank.optimizer * host.ranks
        step = of_rank.gathered + of_rank.activations + of_rank.temporary
        activations = step * host.ranks
    pinned = (sizes.pinned if host.exact else sizes.pinned_below_2_13) if host.gpus else 1.0
    of_workers = WORKER + PREFETCHED * run.batch_size * sizes.sample_bytes
    workers = host.ranks * host.workers * of_workers
    writing = min(host.ranks, run.shards) / run.shards
    keeping = host.ranks / run.shards if divided else 1
    return HostMemory(
        processes=_processes(sizes, host, freed=gradients + activations + workers),
        workers=workers,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        snapshot=int(pinned * writing * sizes.checkpoint_bytes),
        best=int(pinned * keeping * sizes.saved_weights),
    )


def _processes(sizes: Sizes, host: Host, freed: int) -> int:
    """Bytes of the ranks' processes and of what starts them.

    Args:
        freed: bytes that the end of training frees before rank 0 draws.
    """
    rank = sizes.process_bytes + LOOP + (CUDA if host.gpus else 0)
    launcher = LAUNCHER if host.ranks > 1 else 0
    return PROGRAMS + launcher + host.ranks * rank + max(DRAWING - freed, 0)
