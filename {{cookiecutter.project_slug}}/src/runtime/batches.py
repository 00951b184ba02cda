"""Which samples make up each global batch of an epoch, and which of them are this rank's."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from runtime import signals

POOL = 32  # global batches that are sorted by length together: enough to save padding, few enough to stay random


class GlobalBatches(torch.utils.data.DistributedSampler[tuple[list[int], int, float]]):
    """The global batches of an epoch, this rank's part of each: a function of (seed, epoch), whatever the world size.

    Samples of similar length are batched together. Every rank gets equally many rows of each batch; where a batch
    does not divide, fillers of weight 0 complete it, so that no sample is counted twice or left out.

    It is a DistributedSampler by class, since Lightning gives any other sampler's loader one of its own
    (data_connector.py, ``_requires_distributed_sampler``), and calls ``set_epoch`` before each epoch.

    Args:
        lengths: tokens of each sample, (N,).
        global_batch: samples per optimizer step, over all ranks and all batches that are accumulated.
        seed: None keeps batches in order of length, for evaluation.
        accumulate: batches that each rank makes of its part of a global batch.
        start: (epoch, global batches): of this epoch, the first so many are left out, for they are done.

    Yields:
        ``(rows, real, scale)``: row numbers, of which the first ``real`` count; the sum of these rows' losses times
        ``scale``, averaged over ranks and over accumulated batches, is the mean over the global batch.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        accumulate: int = 1,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        self.lengths = np.asarray(lengths)
        super().__init__(self.lengths, world_size, rank, shuffle=seed is not None, seed=seed or 0)  # type: ignore[arg-type]
        self.global_batch, self.accumulate, self.start = global_batch, accumulate, start
        self.epoch = start[0]  # loader workers fetch before Lightning says which epoch it is

    def __len__(self) -> int:
        """Batches per rank of a whole epoch, also of one that is gone on with: Lightning counts from its beginning."""
        return -(-len(self.lengths) // self.global_batch) * self.accumulate

    def batches(self) -> list[np.ndarray]:
        """Row numbers of each global batch of this epoch, in order."""
        size = self.global_batch
        if not self.shuffle:
            order = np.argsort(self.lengths, kind="stable")
            return [order[i : i + size] for i in range(0, len(order), size)]
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))
        pools = [order[i : i + size * POOL] for i in range(0, len(order), size * POOL)]
        order = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        return [batches[i] for i in random.permutation(len(batches))]

    def __iter__(self) -> Iterator[tuple[list[int], int, float]]:
        parts = self.num_replicas * self.accumulate
        done = self.start[1] if self.epoch == self.start[0] else 0
        for batch in self.batches()[done:]:
            each = -(-len(batch) // parts)
            for part in range(self.rank, parts, self.num_replicas):
                mine = batch[part::parts].tolist()
                yield [*mine, *batch[: each - len(mine)].tolist()], len(mine), parts / len(batch)


def loader(
    dataset: torch.utils.data.Dataset,
    lengths: Sequence[int],
    batch_size: int,
    trainer: Any = None,
    seed: int | None = None,
    start: tuple[int, int] = (0, 0),
    num_workers: int = -1,
) -> DataLoader:
    """A loader of this rank's part of every global batch; without a trainer, of a single rank.

    Args:
        dataset: makes a batch of what :class:`GlobalBatches` yields, its only index.
        batch_size: samples per rank and batch.
        seed: of training's order; None for evaluation, which accumulates nothing.
        num_workers: -1: 2 beside a GPU, none on a CPU.
    """
    rank, world_size, accumulate = 0, 1, 1
    if trainer:
        rank, world_size = trainer.global_rank, trainer.world_size
        accumulate = 1 if seed is None else trainer.accumulate_grad_batches
    global_batch = batch_size * world_size * accumulate
    cuda = torch.cuda.is_available()
    workers = num_workers if num_workers >= 0 else (2 if cuda else 0)
    return DataLoader(
        dataset,
        sampler=GlobalBatches(lengths, global_batch, rank, world_size, seed, accumulate, start),
        batch_size=None,
        num_workers=workers,
        pin_memory=cuda,
        persistent_workers=workers > 0,
        worker_init_fn=signals.ignore_signals_in_workers,
    )
