"""Which samples make up each global batch of an epoch, and which of them are this rank's."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from runtime import signals

POOL = 32  # global batches that are sorted by length together: enough to save padding, few enough to stay random


class GlobalBatches(torch.utils.data.DistributedSampler[tuple[np.ndarray, int, float]]):
    """The global batches of an epoch, this rank's part of each: a function of (seed, epoch), whatever the world size.

    Samples of similar length are batched together. Every rank gets equally many rows of each batch, two at least where
    whole batches have as many: one alone makes torch.compile start anew, and BatchNorm fail. Where a batch does not
    divide, fillers of weight 0 complete it, so that no sample is counted twice or left out.

    It is a DistributedSampler by class, since Lightning gives any other sampler's loader one of its own
    (data_connector.py, ``_requires_distributed_sampler``), and calls ``set_epoch`` before each epoch.

    Args:
        lengths: tokens of each sample, (N,).
        global_batch: samples per optimizer step, over all ranks and all batches that are accumulated.
        seed: None, for evaluation: the longest samples come first, so that a lack of memory shows at once.
        accumulate: batches that each rank makes of its part of a global batch.
        start: (epoch, global batches): of this epoch, the first so many are left out, for they are done.

    Yields:
        ``(rows, real, scale)``: row numbers, of which the first ``real`` count; the sum of these rows' losses times
        ``scale``, averaged over ranks and over accumulated batches, is the mean over the global batch.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
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

    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of this epoch, a global batch after the other, and the order in which these batches come."""
        size, rows = self.global_batch, len(self.lengths)
        numbers = np.arange(-(-rows // size))
        if not self.shuffle:
            return np.argsort(self.lengths, kind="stable")[::-1], numbers
        random = np.random.default_rng([self.seed, self.epoch])
        order = np.arange(rows, dtype=np.min_scalar_type(rows))  # as int64, 100 million rows would take 0.8 GB
        random.shuffle(order)
        for at in range(0, rows, size * POOL):
            pool = order[at : at + size * POOL]
            pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        return order, random.permutation(numbers)

    def __iter__(self) -> Iterator[tuple[np.ndarray, int, float]]:
        parts, size = self.num_replicas * self.accumulate, self.global_batch
        done = self.start[1] if self.epoch == self.start[0] else 0
        order, numbers = self.order()
        for number in numbers[done:]:
            batch = order[number * size : (number + 1) * size]
            each = max(-(-len(batch) // parts), min(2, -(-size // parts)))
            for part in range(self.rank, parts, self.num_replicas):
                mine = batch[part::parts]
                whole = len(mine) == each
                rows = mine if whole else np.concatenate([mine, np.resize(batch, each - len(mine))])
                yield rows, len(mine), parts / len(batch)


def pad(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B sequences of integers out of an array → (B, longest) int64, padded on the right with ``fill``, and its mask.

    Args:
        starts: (B,) where each sequence begins in ``flat``.
        lengths: (B,) how long each is.
    """
    column = np.arange(lengths.max())
    mask = column < lengths[:, None]
    values = flat.take(starts[:, None] + column, mode="clip")  # past a sequence's end, whatever lies there
    padded = np.where(mask, values.astype(np.int64), fill)
    return torch.from_numpy(padded), torch.from_numpy(mask.astype(np.int64))


def loader(
    dataset: torch.utils.data.Dataset,
    lengths: Sequence[int] | np.ndarray,
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
