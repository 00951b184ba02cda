"""The position in training, which a checkpoint stores and at which the data starts."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Position:
    """A point of training at which a checkpoint may be written: after a global batch, a validation
    or an epoch.

    Progress is counted in global batches, which no number of ranks and no accumulation changes.
    Lightning's counts, a rank's batches, are kept as well: ``accumulate`` of them make a global
    one, or fewer at an epoch's end.
    """

    step: int = 0  # global batches trained on, in all epochs
    epoch: int = 0  # complete epochs
    batch: int = 0  # global batches trained on in the epoch that is not complete
    rank_batches: int = 0  # a rank's batches in that epoch
    all_rank_batches: int = 0  # a rank's batches in all epochs
    epoch_trained: bool = False  # that epoch has no more batches
    validation_next: bool = False  # validation follows before anything else
    complete: bool = False  # training is
    batches_per_epoch: int = 0  # global batches; 0 if the data has no length
    total_steps: int = 0
    accumulate: int = 1  # a rank's batches in one global batch
    world_size: int = 1

    def __str__(self) -> str:
        return f"step {self.step} of {self.total_steps}"

    def after_batch(
        self,
        *,
        epoch: int,
        rank_batches: int,
        all_rank_batches: int,
        last: bool,
    ) -> "Position":
        """One global batch later.

        Args:
            epoch, rank_batches, all_rank_batches: Lightning's counts.
            last: whether it was the epoch's last batch.
        """
        return replace(
            self,
            step=self.step + 1,
            epoch=epoch,
            batch=math.ceil(rank_batches / self.accumulate),
            rank_batches=rank_batches,
            all_rank_batches=all_rank_batches,
            epoch_trained=last,
            validation_next=False,
        )

    def after_epoch(self) -> "Position":
        """At the next epoch's start; unchanged if ``max_steps`` ended training within one."""
        if not self.epoch_trained:
            return self
        return replace(self, epoch=self.epoch + 1, batch=0, rank_batches=0, epoch_trained=False)

    def next_start(self) -> tuple[int, int]:
        """(epoch, global batches of it to skip): where the data of a resumed run begins."""
        if self.epoch_trained and not self.validation_next:
            return self.epoch + 1, 0
        return self.epoch, self.batch

    def rank_counts(self, accumulate: int) -> tuple[int, int]:
        """A rank's batches (in the epoch of ``next_start``, in all) if ``accumulate`` of them make
        a global batch now.
        """
        _, batch = self.next_start()
        if accumulate != self.accumulate:
            return batch * accumulate, self.step * accumulate
        return (self.rank_batches if batch else 0), self.all_rank_batches
