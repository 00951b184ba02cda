"""Whether ranks train on different data, and on equally much of it."""

import math
from collections import Counter
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.utils.data import IterableDataset

from smlightning.cluster import collectives, session
from smlightning.data import draws
from smlightning.data.batches import digest
from smlightning.data.sharing import refuse_shared_rows
from smlightning.errors import UserError

# Batches that are compared at most: two of each worker, of up to 16, tell repetition from chance.
MOST = 32
NAMED = 8  # ranks that an error names

History = tuple[int, ...]
"""The digests of one rank's batches, from the first on."""


class DataDividedCheck(pl.Callback):
    """Compares the ranks' first two batches of a fit, before the second is trained on. Collective.

    Where a rank's batches are equal themselves, more are compared, MOST at most: loader workers
    that do not divide a stream among them give each batch in turn. Not refused is what proves
    nothing: uniform data, and an epoch of one batch, where data may be so little that a sampler
    has to give a sample to two ranks.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.workers = stream_workers(trainer.train_dataloader)
        self.batches: list[list[int]] = []  # of each batch, the ranks' digests
        self.done = trainer.world_size == 1 and self.workers < 2
        if trainer.world_size > 1:
            refuse_different_lengths(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.done:
            return
        # A sum is all that SMDDP has (collectives.all_sum): a slot of its own for each rank, and
        # one that counts the ranks whose epoch ends here.
        slots = torch.zeros(trainer.world_size + 1, dtype=torch.int64)
        slots[trainer.global_rank] = digest(batch)
        slots[-1] = trainer.is_last_batch
        *digests, ended = collectives.all_sum(slots).tolist()
        self.batches.append(digests)
        # A rank whose epoch has ended would not come again.
        self.done = self._judge() or len(self.batches) == MOST or ended > 0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the rows of the first epoch, where a loader has rows."""
        if trainer.world_size == 1:
            return
        for stream in draws.index_streams(trainer.train_dataloader):
            sketch = stream.take_sketch()
            if sketch is not None:
                refuse_shared_rows(sketch)

    def _judge(self) -> bool:
        """Whether the batches so far prove that ranks and workers have data of their own.

        Raises:
            UserError: they prove that ranks, or the workers of a loader, share it.
        """
        ranks: list[History] = list(zip(*self.batches, strict=True))
        telling = [history for history in ranks if len(set(history)) > 1]
        repeats = bool(telling) and all(
            repeats_by_worker(history, self.workers) for history in telling
        )
        two_of_each = 2 * self.workers
        if repeats and len(self.batches) == two_of_each:
            raise UserError(
                f"Each of the train loader's {self.workers} workers gives the same batches, so "
                f"training sees each {self.workers} times",
                "let the IterableDataset give every worker a part of its own "
                "(torch.utils.data.get_worker_info), or set num_workers to 1",
            )
        same = ranks_with_the_same(ranks)
        if same:
            named = ", ".join(map(str, same[:NAMED]))
            if len(same) > NAMED:
                named += f" and {len(same) - NAMED} more"
            raise UserError(
                f"Ranks {named} of {len(ranks)} were given the same batches and would train on "
                "the same data",
                "let train_dataloader return an ordinary DataLoader, which Lightning divides "
                "among the ranks, or give its loader a DistributedSampler or "
                "smlightning.data.batches.GlobalBatches; let a stream give each rank a part "
                "(dist.get_global_rank()), or draw from a generator of the rank's own",
            )
        chance = repeats and len(self.batches) < two_of_each  # one of each worker may be equal
        return len(telling) == len(ranks) and not chance


def stream_workers(loaders: Any) -> int:
    """The most workers that any loader of an IterableDataset has; 0 where there is none."""
    workers = [0]
    for loader in CombinedLoader(loaders, "sequential").flattened:
        if isinstance(getattr(loader, "dataset", None), IterableDataset):
            workers.append(getattr(loader, "num_workers", 0))
    return max(workers)


def repeats_by_worker(history: History, workers: int) -> bool:
    """Whether each of a rank's batches so far came as often in a row as there are workers."""
    if workers < 2:
        return False
    rounds = [history[at : at + workers] for at in range(0, len(history), workers)]
    return all(len(set(batches)) == 1 for batches in rounds)


def ranks_with_the_same(ranks: list[History]) -> list[int]:
    """The largest set of ranks with the same batches; none whose batches are all equal."""
    counts = Counter(history for history in ranks if len(set(history)) > 1)
    if not counts:
        return []
    ((history, times),) = counts.most_common(1)
    if times < 2:
        return []
    return [rank for rank, other in enumerate(ranks) if other == history]


def refuse_different_lengths(trainer: pl.Trainer) -> None:
    """A step takes all ranks: one whose batches end early would leave the others waiting.

    Collective.

    Raises:
        UserError: the ranks' numbers of training batches are known, and differ.
    """
    batches = trainer.num_training_batches
    slots = torch.zeros(trainer.world_size, dtype=torch.int64)
    slots[trainer.global_rank] = -1 if math.isinf(batches) else batches
    counts = collectives.all_sum(slots).tolist()
    least, most = min(counts), max(counts)
    if least == -1 or least == most:
        return
    raise UserError(
        f"An epoch has {least} batches on rank {counts.index(least)} and {most} on rank "
        f"{counts.index(most)}, and each step takes all ranks",
        "give every rank as many, as DistributedSampler and GlobalBatches do",
    )


def equally_many(loaders: Any) -> bool:
    """Whether all ranks get equally many batches. Collective.

    No stream promises it, and no loader without a length.
    """
    cluster = session.current_cluster()
    slots = torch.zeros(cluster.world_size)  # a sum is all that SMDDP has
    slots[cluster.rank] = _batches(loaders)
    counts = collectives.all_sum(slots).tolist()
    return all(count == counts[0] for count in counts[1:])


def _batches(loaders: Any) -> float:
    """How many batches the loaders have in all; nan, which equals nothing, where it is unknown."""
    total = 0
    for loader in CombinedLoader(loaders, "sequential").flattened:
        size = sized_len(loader)
        if size is None or isinstance(getattr(loader, "dataset", None), IterableDataset):
            return math.nan
        total += size
    return total
