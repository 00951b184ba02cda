"""Whether the ranks train on different data, on equally much, and agree on what it gave; else they are refused."""

import hashlib
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from torch.utils.data import IterableDataset

from runtime import ranks
from runtime.report import UserError

MOST = 32  # batches that are compared: two of each worker, of up to 16, tell their repetition from chance


class DataDividedCheck(pl.Callback):
    """Compares the ranks' first two batches of a fit, before the second is trained on. Collective.

    Where a rank's batches are equal themselves, more are compared, MOST at most: loader workers that do not divide a
    stream among them give each batch in turn. Not refused is what proves nothing: uniform data, and an epoch of one
    batch, where data may be so little that a sampler has to give a sample to two ranks.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        each = CombinedLoader(trainer.train_dataloader, "sequential").flattened
        streams = [loader for loader in each if isinstance(getattr(loader, "dataset", None), IterableDataset)]
        self.workers = max((getattr(loader, "num_workers", 0) for loader in streams), default=0)
        self.seen: list[list[int]] = []  # for each batch, the ranks' digests
        self.done = trainer.world_size == 1 and self.workers < 2
        if trainer.world_size > 1:
            refuse_different_lengths(trainer)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.done:
            return
        slots = torch.zeros(trainer.world_size + 1, dtype=torch.int64)  # a sum is all that SMDDP has (ranks.all_sum)
        slots[trainer.global_rank], slots[-1] = digest(batch), trainer.is_last_batch
        *digests, ended = ranks.all_sum(slots).tolist()
        self.seen.append(digests)
        of_ranks = [*zip(*self.seen, strict=True)]
        told = all(len(set(mine)) > 1 for mine in of_ranks)
        repeat = {given_by_each_worker(mine, self.workers) for mine in of_ranks if len(set(mine)) > 1} == {True}
        if repeat and len(self.seen) < 2 * self.workers:
            told = False  # it may be chance
        self.done = told or len(self.seen) == MOST or ended > 0  # a rank whose epoch has ended would not come again
        if repeat and len(self.seen) == 2 * self.workers:
            raise UserError(
                f"Each of the train loader's {self.workers} workers gives the same batches, so training sees each "
                f"{self.workers} times; let the IterableDataset give every worker a part of its own "
                "(torch.utils.data.get_worker_info), or set num_workers to 1."
            )
        if same := repeating(of_ranks):
            named = ", ".join(map(str, same[:8])) + f" and {len(same) - 8} more" * (len(same) > 8)
            raise UserError(
                f"Ranks {named} of {trainer.world_size} were given the same batches and would train on the "
                "same data; let train_dataloader return an ordinary DataLoader, which Lightning divides among the "
                "ranks, or give its loader a DistributedSampler or runtime.batches.GlobalBatches."
            )


def given_by_each_worker(mine: tuple[int, ...], workers: int) -> bool:
    """Whether each of a rank's batches so far came as often as there are workers."""
    return workers > 1 and all(len({*mine[at : at + workers]}) == 1 for at in range(0, len(mine), workers))


def repeating(of_ranks: list[tuple[int, ...]]) -> list[int]:
    """The largest set of ranks with the same batches, which are not all equal; each rank's digests are given."""
    ((most, times),) = Counter(mine for mine in of_ranks if len(set(mine)) > 1).most_common(1) or [((), 0)]
    return [rank for rank, mine in enumerate(of_ranks) if mine == most and times > 1]


def refuse_different_lengths(trainer: pl.Trainer) -> None:
    """A step takes all ranks: one whose batches end early would leave the others waiting. Collective.

    Raises:
        UserError: the ranks' numbers of training batches are known, and differ.
    """
    counts = torch.zeros(trainer.world_size, dtype=torch.int64)
    counts[trainer.global_rank] = -1 if math.isinf(trainer.num_training_batches) else trainer.num_training_batches
    found = ranks.all_sum(counts).tolist()
    if -1 not in found and len(set(found)) > 1:
        least, most = min(found), max(found)
        raise UserError(
            f"An epoch has {least} batches on rank {found.index(least)} and {most} on rank {found.index(most)}, and "
            "each step takes all ranks; give every rank as many, as DistributedSampler and GlobalBatches do."
        )


def equal_on_ranks(name: str, value: float, refuse: bool) -> float:
    """A metric's value, which rank 0 prints and chooses the best weights by, for all. Collective.

    Raises:
        UserError: another rank has another value, and `refuse`; else rank 0 prints a warning.
    """
    this = ranks.cluster()
    values = torch.zeros(this.world_size)
    values[this.rank] = value
    values = ranks.all_sum(values)
    equal = torch.isclose(values, values[0], rtol=1e-3, equal_nan=True).tolist()  # some add up in another order
    if not all(equal):
        other = equal.index(False)
        said = (
            f"{name} is {values[0]:.6g} on rank 0 and {values[other]:.6g} on rank {other}, of a part of the data each "
            "perhaps; sum it over the ranks: log a torchmetrics metric, or self.log(..., sync_dist=True) where the "
            "batches are equally large"
        )
        if refuse:
            raise UserError(f"{said}.")
        if this.rank == 0:
            print(f"warning: {said}", file=sys.stderr)
    return value


def equally_many(loaders: Any) -> bool:
    """Whether all ranks get equally many batches; no stream and no loader without a length promises it. Collective."""
    this = ranks.cluster()
    each = CombinedLoader(loaders, "sequential").flattened
    streams = any(isinstance(getattr(loader, "dataset", None), IterableDataset) for loader in each)
    slots = torch.zeros(this.world_size)  # a sum is all that SMDDP has
    sizes = [sized_len(loader) for loader in each]
    slots[this.rank] = math.nan if streams or None in sizes else sum(filter(None, sizes))
    first, *others = ranks.all_sum(slots).tolist()
    return all(first == other for other in others)


def leaves(item: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors, numbers and strings in a batch, up to ten levels deep."""
    if isinstance(item, torch.Tensor | str | bytes | int | float):
        yield item
    elif depth < 10:
        parts = item if isinstance(item, Mapping | list | tuple) else getattr(item, "__dict__", ())
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            yield from leaves(part, depth + 1)


def digest(batch: Any) -> int:
    """48 bits of the hash of what a batch holds."""
    content = hashlib.blake2b(digest_size=6)
    for item in leaves(batch):
        if isinstance(item, torch.Tensor) and item.layout == torch.strided and not item.is_nested:
            tensor = item.detach().cpu()
            content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            content.update(repr(item).encode())
    return int.from_bytes(content.digest(), "big")
