"""Where training is, as a value: what a checkpoint records of it, and where the data starts."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

# Fields that checkpoints of 1.0.0 do not have: the default of each is what was so before it.
ADDED_LATER: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Position:
    """A point of training at which a checkpoint may be written: after a global batch, a validation
    or an epoch.

    Progress is counted in global batches, which no number of ranks and no accumulation changes.
    What Lightning counts, a rank's batches, is kept beside it: ``accumulate`` of them make a global
    one, an epoch's last perhaps of fewer.
    """

    step: int = 0  # global batches trained on, in all epochs
    epoch: int = 0  # complete epochs
    batch: int = 0  # global batches trained on in the epoch that is not complete
    rank_batches: int = 0  # a rank's batches in that epoch
    all_rank_batches: int = 0  # a rank's batches in all epochs
    epoch_trained: bool = False  # that epoch has no more batches
    validation_next: bool = False  # validation follows before anything else
    complete: bool = False  # training is
    batches_per_epoch: int = 0  # global batches; 0 where the data has no length
    total_steps: int = 0
    accumulate: int = 1  # a rank's batches in one global batch

    def __str__(self) -> str:
        return f"step {self.step} of {self.total_steps}"

    def started(self, batches_per_epoch: int, total_steps: int, accumulate: int) -> "Position":
        """The same place in a training of this length."""
        return replace(
            self,
            batches_per_epoch=batches_per_epoch,
            total_steps=total_steps,
            accumulate=accumulate,
        )

    def after_batch(
        self,
        *,
        epoch: int,
        rank_batches: int,
        all_rank_batches: int,
        last: bool,
        validation_next: bool,
    ) -> "Position":
        """One global batch on; what it is given are Lightning's counts. ``last``: it was the
        epoch's last.
        """
        return replace(
            self,
            step=self.step + 1,
            epoch=epoch,
            batch=math.ceil(rank_batches / self.accumulate),
            rank_batches=rank_batches,
            all_rank_batches=all_rank_batches,
            epoch_trained=last,
            validation_next=validation_next,
        )

    def after_validation(self) -> "Position":
        return replace(self, validation_next=False)

    def after_epoch(self) -> "Position":
        """At the next epoch's start; unchanged where ``max_steps`` ended training within one."""
        if not self.epoch_trained:
            return self
        return replace(self, epoch=self.epoch + 1, batch=0, rank_batches=0, epoch_trained=False)

    def finished(self) -> "Position":
        """Training is complete."""
        return replace(self, complete=True)

    @property
    def at_epoch_end(self) -> bool:
        """Whether the epoch, or all of training, ends here without another validation."""
        ends = self.epoch_trained or self.step == self.total_steps
        return ends and not self.validation_next

    def next_start(self) -> tuple[int, int]:
        """(epoch, global batches of it to leave out): where the data of a resumed run begins."""
        if self.epoch_trained and not self.validation_next:
            return self.epoch + 1, 0
        return self.epoch, self.batch

    def rank_counts(self, accumulate: int) -> tuple[int, int]:
        """A rank's batches (in the epoch of ``next_start``, in all) where so many make a global
        batch now.
        """
        _, batch = self.next_start()
        if accumulate != self.accumulate:
            return batch * accumulate, self.step * accumulate
        return (self.rank_batches if batch else 0), self.all_rank_batches

    def to_dict(self) -> dict[str, Any]:
        """Plain values: a checkpoint holds no classes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Position":
        """Of this version's format or an older one's; ValueError of another's."""
        names = {field.name for field in fields(cls)}
        given = set(values) if isinstance(values, Mapping) else set()
        if not names - ADDED_LATER <= given <= names:
            raise ValueError(f"expected {sorted(names)}, found {values!r}")
        return cls(**values)
