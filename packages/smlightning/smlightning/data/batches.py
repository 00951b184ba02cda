"""Global batches: the order of an epoch, each rank's part of it, and the batches to skip.

    def train_dataloader(self):                # in a LightningDataModule
        return batches.loader(dataset, lengths, batch_size, self.trainer, seed)

where ``dataset[batch]`` makes a batch of a :class:`RankBatch`. The loader starts where training is.
"""

import itertools
from collections.abc import Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from smlightning.cluster import signals
from smlightning.data import rng
from smlightning.data.exact import Resumable, RowLoader, SeededRows, start_of
from smlightning.errors import UserError

# Global batches that are sorted together by length: enough to save padding, few enough to keep the
# order random.
POOL = 32


class RankBatch(NamedTuple):
    """One rank's part of a global batch.

    Attributes:
        rows: row numbers: samples, then fillers, which give every rank equally many rows.
        real: the number of samples in ``rows``.
        scale: multiply the sum of the samples' losses by it. DDP's mean over ranks and Lightning's
            over accumulated batches is then the mean over the global batch.
        moment: of the random numbers of its rows.
    """

    rows: np.ndarray
    real: int
    scale: float
    moment: rng.Moment = rng.Moment()

    def weight(self) -> torch.Tensor:
        """(B,) float32: 1 for a sample, 0 for a filler."""
        is_sample = np.arange(len(self.rows)) < self.real
        return torch.from_numpy(is_sample.astype(np.float32))


class GlobalBatches(Resumable):
    """This rank's parts of the global batches of an epoch: a function of (seed, epoch).

    The global batches do not depend on the world size. Samples of similar length are batched
    together. Every rank gets equally many rows of each batch, and at least two if whole batches
    allow it: with a single row torch.compile recompiles and BatchNorm fails. Fillers complete a
    batch that the ranks do not divide: each sample counts once.

    Args:
        lengths: tokens of each sample, (N,).
        global_batch: samples per optimizer step, over all ranks and all accumulated batches.
        seed: None for evaluation: the longest samples come first, and too little memory shows at
            once.
        accumulate: accumulated batches per rank and global batch.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        accumulate: int = 1,
    ) -> None:
        self.lengths = np.asarray(lengths)
        self.shuffle, self.seed = seed is not None, seed or 0
        self.rank, self.world_size = rank, world_size
        self.global_batch = global_batch
        self.accumulate = accumulate

    def __len__(self) -> int:
        """Batches per rank of an epoch."""
        return -(-len(self.lengths) // self.global_batch) * self.accumulate

    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """All row numbers, one global batch after the other, and the order of these batches."""
        rows = len(self.lengths)
        numbers = np.arange(-(-rows // self.global_batch))
        if not self.shuffle:
            longest_first = np.argsort(self.lengths, kind="stable")[::-1]
            return longest_first.copy(), numbers  # torch rejects negative strides
        numbers_of = np.random.default_rng([self.seed, self.epoch])
        # The smallest type: as int64, 100 million rows would take 0.8 GB.
        order = np.arange(rows, dtype=np.min_scalar_type(rows))
        numbers_of.shuffle(order)
        for at in range(0, rows, self.global_batch * POOL):
            pool = order[at : at + self.global_batch * POOL]
            pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        return order, numbers_of.permutation(numbers)

    def __iter__(self) -> Iterator[RankBatch]:
        moment = rng.Moment(self.seed)
        done = 0
        if self.shuffle:
            done = self.begin()
            moment = rng.Moment(self.seed, self.epoch, self.turn)
        yield from itertools.islice(self._rank_batches(moment), done, None)

    def _rank_batches(self, moment: rng.Moment) -> Iterator[RankBatch]:
        """This rank's parts of the epoch."""
        size = self.global_batch
        order, numbers = self.order()
        for number in numbers:
            yield from self._parts(order[number * size : (number + 1) * size], moment)

    def _parts(self, global_batch: np.ndarray, moment: rng.Moment) -> Iterator[RankBatch]:
        """This rank's parts of a global batch: one, or as many as are accumulated."""
        parts = self.world_size * self.accumulate
        # Rows of each part: as many as the largest needs, and two if a whole batch has two.
        many = max(-(-len(global_batch) // parts), min(2, -(-self.global_batch // parts)))
        for part in range(self.rank, parts, self.world_size):
            samples = global_batch[part::parts]
            rows = samples
            if len(samples) < many:
                fillers = np.resize(global_batch, many - len(samples))
                rows = np.concatenate([samples, fillers])
            yield RankBatch(rows, len(samples), parts / len(global_batch), moment)


def loader(
    dataset: torch.utils.data.Dataset,
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    trainer: Any = None,
    seed: int | None = None,
    num_workers: int = -1,
) -> RowLoader:
    """A loader of this rank's part of every global batch; without a trainer, for a single rank.

    Args:
        dataset: ``dataset[batch]`` makes a batch of a :class:`RankBatch`.
        lengths: tokens of each sample, (N,); ones if samples have no length.
        batch_size: samples per rank and batch.
        seed: for the order in training; None for evaluation.
        num_workers: -1: 2 with a GPU, 0 on a CPU.

    Raises:
        UserError: the numbers of lengths and samples differ.
    """
    samples = len(dataset) if isinstance(dataset, Sized) else len(lengths)
    if samples != len(lengths):
        raise UserError(
            f"batches.loader got {len(lengths)} lengths for {samples} samples",
            "give it one length for each sample: [1] * N if samples have none",
        )
    rank, world_size, accumulate = 0, 1, 1
    if trainer:
        rank, world_size = trainer.global_rank, trainer.world_size
        if seed is not None:
            accumulate = trainer.accumulate_grad_batches
    global_batch = batch_size * world_size * accumulate
    cuda = torch.cuda.is_available()
    if num_workers < 0:
        num_workers = 2 if cuda else 0
    batches = GlobalBatches(lengths, global_batch, rank, world_size, seed, accumulate)
    if hasattr(trainer, "fit_loop"):  # a hand-written loop passes an object without loops
        batches.start = lambda: start_of(trainer)
    inner = DataLoader(
        SeededRows(dataset),
        sampler=batches,
        batch_size=None,
        num_workers=num_workers,
        pin_memory=cuda,
        persistent_workers=num_workers > 0,
        worker_init_fn=signals.ignore_signals_in_workers,
    )
    return RowLoader({**vars(inner), "dataset": dataset}, inner, divides=True)


def pad(
    flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray, fill: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """B sequences of one array → (B, longest) int64, padded on the right, and its mask.

    Args:
        flat: integers, all sequences.
        starts: (B,) start of each sequence in ``flat``.
        lengths: (B,) length of each sequence.
        fill: the value that pads shorter sequences.
    """
    column = np.arange(lengths.max())
    mask = column < lengths[:, None]
    # Reads past the end of shorter sequences; the fill replaces these values.
    values = flat.take(starts[:, None] + column, mode="clip")
    padded = np.where(mask, values.astype(np.int64), fill)
    return torch.from_numpy(padded), torch.from_numpy(mask.astype(np.int64))
