"""Whether ranks were given the same rows: seen in an epoch's rows of each, without keeping all.

Of its rows each rank keeps those with the smallest hashes. A row that two ranks have is among both
ranks' smallest, or among neither's (bottom-k sketches: Cohen and Kaplan, PODC 2007).
"""

from collections import Counter
from typing import Any

import numpy as np

from smlightning.cluster import collectives
from smlightning.errors import UserError

KEPT = 256  # rows of each rank
SHARE = 0.02  # of the rows may be on two ranks: samplers repeat a few to even the ranks out


class RowSketch:
    """The rows with the smallest hashes of those that a rank was given."""

    def __init__(self) -> None:
        self.hashes = np.empty(0, np.uint64)
        self.repeated = False  # whether a row came twice on this rank, as with replacement

    def add(self, rows: Any) -> None:
        """Rows of a batch by their numbers; anything else is left out."""
        try:
            numbers = np.asarray(rows)
        except ValueError:
            return
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            return
        hashes = _hashes(numbers)
        if len(self.hashes) == KEPT:
            hashes = hashes[hashes <= self.hashes[-1]]
        if not len(hashes):
            return
        together = np.sort(np.concatenate([self.hashes, hashes]))
        different = np.unique(together)
        self.repeated |= len(different) < len(together)
        self.hashes = different[:KEPT]

    def numbers(self) -> list[int]:
        """For the other ranks: always as many."""
        hashes = self.hashes.astype(np.int64).tolist()
        return [int(self.repeated), *hashes, *[-1] * (KEPT - len(hashes))]


def _hashes(rows: np.ndarray) -> np.ndarray:
    """62 bits of each row's number (the finalizer of splitmix64)."""
    mixed = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(2)


def refuse_shared_rows(sketch: RowSketch) -> None:
    """Refuse an epoch of which many rows went to more than one rank. Collective.

    Raises:
        UserError: they did, and no rank was given a row twice, as sampling with replacement does.
    """
    ranks = collectives.from_each_rank(sketch.numbers())
    if any(repeated for repeated, *_ in ranks):
        return
    kept = [[number for number in numbers if number >= 0] for _, *numbers in ranks]
    full = [max(numbers) for numbers in kept if len(numbers) == KEPT]
    limit = min(full, default=2**63)  # below it every rank's are complete
    times = Counter(number for numbers in kept for number in numbers if number <= limit)
    shared = sum(count > 1 for count in times.values())
    if shared >= len(ranks) and shared > SHARE * len(times):
        raise UserError(
            f"{shared} of {len(times)} rows that were looked at went to more than one rank in the "
            "first epoch, and as many perhaps to none",
            "let train_dataloader return an ordinary DataLoader, which Lightning divides among "
            "the ranks, or give the sampler the same seed on every rank; where it is intended, "
            "pass training_checks(data_divided=False) in src/train.py",
        )
