"""Whether the ranks train on different data: a loader that hands two ranks the same batches is refused by name."""

import hashlib
import math
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


class DataDividedCheck(pl.Callback):
    """Compares the ranks' first two batches of a fit, before the second is trained on. Collective.

    Not refused is what proves nothing: two batches of a rank that are equal themselves, for then the data is uniform,
    and an epoch of one batch, where data may be so little that a sampler has to give a sample to two ranks.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen: list[list[int]] = []  # for each batch, the ranks' digests
        self.done = trainer.world_size == 1

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.done:
            return
        slots = torch.zeros(trainer.world_size + 1, dtype=torch.int64)  # a sum is all that SMDDP has (ranks.all_sum)
        slots[trainer.global_rank], slots[-1] = digest(batch), trainer.is_last_batch
        *digests, ended = ranks.all_sum(slots).tolist()
        self.seen.append(digests)
        self.done = len(self.seen) == 2 or ended > 0  # a rank whose epoch has ended would not come to the second sum
        if len(self.seen) == 2 and (same := repeating(*self.seen)):
            named = ", ".join(map(str, same[:8])) + f" and {len(same) - 8} more" * (len(same) > 8)
            raise UserError(
                f"Ranks {named} of {trainer.world_size} were given the same batches, two in a row, and would train on "
                "the same data; let train_dataloader return an ordinary DataLoader, which Lightning divides among the "
                "ranks, or give its loader a DistributedSampler or runtime.batches.GlobalBatches."
            )


def repeating(first: list[int], second: list[int]) -> list[int]:
    """The largest set of ranks with the same first and the same second batch; of each batch the digests, by rank."""
    pairs = list(zip(first, second, strict=True))
    ((most, times),) = Counter(pair for pair in pairs if pair[0] != pair[1]).most_common(1) or [((0, 0), 0)]
    return [rank for rank, pair in enumerate(pairs) if pair == most and times > 1]


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
