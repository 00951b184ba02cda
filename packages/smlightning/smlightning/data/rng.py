"""Random numbers as functions of numbers: a row's of (seed, epoch, row), a step's of (seed, step,
rank).

Before it reads a row, `data/exact.py` seeds the generators of torch, numpy and Python, and those
in the data set's attributes: on any rank, in any loader worker, and after a resume. A data
set that gathers a batch at once calls `generator` for each row:

    def __getitem__(self, batch):
        noise = np.stack([rng.generator(row).normal(size=8) for row in batch.rows])
"""

import random
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from smlightning.parts import generators

# The uses of random numbers.
ORDER, ROW, BATCH, OWN, STREAM, STEP, TRANSFER, EPOCH, VALIDATION = range(9)
ALIKE = 2  # batches of a run for which streams have the same random numbers on all ranks
MASK = 2**64 - 1


class Moment(NamedTuple):
    """The part of the seeds that is equal for all rows of an iteration.

    Attributes:
        seed: of the run.
        epoch: from 0; 0 in every evaluation, so all have the same random numbers.
        turn: restarts of the loader in this epoch, while a longer loader continues.
    """

    seed: int = 0
    epoch: int = 0
    turn: int = 0


_now = Moment()  # of the batch that this process is fetching


def enter(moment: Moment) -> None:
    """Set the moment of `epoch` and `generator`."""
    global _now
    _now = moment


def epoch() -> int:
    """The epoch of the current batch, also in persistent loader workers."""
    return _now.epoch


def generator(row: int) -> np.random.Generator:
    """A row's generator in this epoch: a function of (seed, epoch, row)."""
    return np.random.default_rng(mix(OWN, *_now, int(row)))


def mix(*numbers: int, before: int = 0) -> int:
    """64 bits that depend on every bit of ``numbers``.

    Each goes through the finalizer of splitmix64 (Steele et al. 2014).

    Args:
        before: the result for earlier numbers.
    """
    mixed = before
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        mixed ^= mixed >> 31
    return mixed


def number_of(content: bytes) -> int:
    """64 bits that depend on all bytes."""
    return zlib.crc32(content) << 32 | zlib.adler32(content)


def seed_generators(number: int, own: Iterable[Any] = ()) -> None:
    """Seed torch's, Python's and numpy's generators, and ``own`` ones, by 64 bits."""
    torch.default_generator.manual_seed(number >> 1)
    random.seed(number & 0xFFFFFFFF)  # a longer number takes longer
    np.random.seed(number >> 32)
    for each in own:
        if isinstance(each, torch.Generator):
            each.manual_seed(number >> 1)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = type(each.bit_generator)(number).state
        else:
            each.seed(number >> 32)


def own_generators(part: Any) -> list[Any]:
    """Generators in an object; not those of the rows that a sampler chooses from."""
    return generators(part, outside=(Dataset,) if isinstance(part, Sampler) else ())
