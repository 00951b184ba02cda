"""What has to be the same on every rank is compared: after the data's setup, before the first step,
and after the first epoch.

Ranks that differ train without an error: a label's number means another label on each, or the
weights drift apart.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from torch.nn.parallel import DistributedDataParallel

from smlightning.cluster import collectives
from smlightning.data import draws
from smlightning.errors import UserError
from smlightning.tensors import checksum

# Attributes that are compared whether or not Model.save mentions them.
USUAL_NAMES = ("labels", "classes", "class_names", "label_names", "vocabulary", "vocab")
SHOWN = 60  # characters of a value that a sentence shows


class EqualRanks(pl.Callback):
    """Refuses ranks that differ in the data's fingerprint, in what `Model.save` will write, in
    numbers of batches, in weights or in what of them is trained.

    After the first epoch it costs a look at each parameter once an epoch.
    """

    def __init__(self) -> None:
        self.trained: set[str] = set()  # parameters whose gradients DDP adds up
        self.compared: set[str] = set()  # whose first rows were compared: training, validation, …
        self.weights_compared = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Called right after the data's own ``setup``."""
        datamodule = getattr(trainer, "datamodule", None)
        if stage == "fit" and trainer.world_size > 1 and datamodule is not None:
            _refuse_other_fingerprint(getattr(datamodule, "fingerprint", ""))
            _refuse_other_attributes(datamodule, _written_by_save(pl_module))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            _refuse_other_attributes(pl_module, _written_by_save(pl_module))
        self.trained = _trained(pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            _refuse_other_lengths("validation", trainer.num_val_batches)
            _refuse_other_numbers_of_rows("training", trainer.train_dataloader)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare_rows("validation", trainer.val_dataloaders, trainer.world_size)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare_rows("test", trainer.test_dataloaders, trainer.world_size)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            _refuse_other_lengths("the test", trainer.num_test_batches)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._compare_rows("training", trainer.train_dataloader, trainer.world_size)
        if batch_idx == 0 and _is_ddp(trainer):
            self._refuse_unfrozen(pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not _is_ddp(trainer):
            return
        self._refuse_unfrozen(pl_module)
        if not self.weights_compared:
            self.weights_compared = True
            _refuse_other_weights(trainer, pl_module)

    def _compare_rows(self, name: str, loaders: Any, world_size: int) -> None:
        """Once, when each loader has given a batch."""
        if world_size > 1 and name not in self.compared:
            self.compared.add(name)
            _refuse_other_numbers_of_rows(name, loaders)
            _refuse_other_first_rows(name, loaders)

    def _refuse_unfrozen(self, module: pl.LightningModule) -> None:
        """DDP adds up the gradients of what required them when it wrapped the model."""
        unfrozen = sorted(_trained(module) - self.trained)
        if unfrozen:
            raise UserError(
                f"{unfrozen[0]} and {len(unfrozen) - 1} more parameters require gradients since "
                "training began, and each rank would train them on its own data alone",
                "let them require gradients from the start, in a parameter group whose learning "
                "rate is 0 until then",
            )


def _is_ddp(trainer: pl.Trainer) -> bool:
    return isinstance(trainer.strategy.model, DistributedDataParallel)


def _trained(module: torch.nn.Module) -> set[str]:
    return {name for name, weights in module.named_parameters() if weights.requires_grad}


# Facts of the data and of the model


def _refuse_other_fingerprint(fingerprint: str) -> None:
    other = _first_difference(collectives.from_each_rank([_digest_of_text(str(fingerprint))]))
    if other is not None:
        rank, _ = other
        raise UserError(
            f"Data.fingerprint is another one on rank {rank} than on rank 0: they read other data",
            "bring the same files to every host, and make nothing in prepare_data depend on the "
            "host or the process",
        )


def _written_by_save(module: Any) -> list[str]:
    """Names that the code of `Model.save` mentions, and some usual ones."""
    code = getattr(getattr(type(module), "save", None), "__code__", None)
    return sorted({*USUAL_NAMES, *getattr(code, "co_names", ())})


def _refuse_other_attributes(owner: Any, names: list[str]) -> None:
    """Refuse plain public attributes of these names that differ."""
    values = {name: vars(owner).get(name) for name in names if not name.startswith("_")}
    plain = {name: value if _is_plain(value) else None for name, value in values.items()}
    digests = [_digest_of_text(repr(value)) for value in plain.values()]
    other = _first_difference(collectives.from_each_rank(digests))
    if other is None:
        return
    rank, number = other
    name, value = list(plain.items())[number]
    cls = type(owner).__name__
    here = repr(value)
    shown = here if len(here) <= SHOWN else f"{here[:SHOWN]}…"
    raise UserError(
        f"{cls}.{name} is another one on rank {rank} than on rank 0 (here {shown}), and the saved "
        "model would have one of them",
        "make it the same in every process: sort it, since each process has its own order of a "
        "set, or write it in prepare_data and read it in setup",
    )


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether ``repr`` tells all of a value: text, numbers, and lists and dictionaries of these."""
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return True
    if isinstance(value, dict):
        parts: list[Any] = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return False
    return depth < 4 and all(_is_plain(part, depth + 1) for part in parts)


def _digest_of_text(text: str) -> int:
    content = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6)
    return int.from_bytes(content.digest(), "big")


def _first_difference(ranks: list[list[int]]) -> tuple[int, int] | None:
    """The first rank that differs from rank 0, and in which of its numbers."""
    for rank, numbers in enumerate(ranks):
        for number, (first, here) in enumerate(zip(ranks[0], numbers, strict=True)):
            if first != here:
                return rank, number
    return None


# Loaders


def _refuse_other_lengths(name: str, batches: Iterable[int | float]) -> None:
    """Refuse loaders with other numbers of batches on other ranks, where these are known."""
    known = [-1 if number == float("inf") else int(number) for number in batches]
    ranks = collectives.from_each_rank(known) if known else []
    other = _first_difference([[number for number in numbers if number >= 0] for numbers in ranks])
    if other is not None:
        rank, number = other
        raise UserError(
            f"A loader of {name} has {ranks[0][number]} batches on rank 0 and "
            f"{ranks[rank][number]} on rank {rank}, and the ranks would wait for each other",
            "give every rank all of the data: Lightning divides an ordinary DataLoader, and "
            "smlightning.data.batches.loader evens the ranks out",
        )


def _refuse_other_numbers_of_rows(name: str, loaders: Any) -> None:
    lengths = [len(dataset) for dataset in draws.divided_data(loaders)]
    _refuse_sliced_data(name, "numbers of samples", lengths)


def _refuse_other_first_rows(name: str, loaders: Any) -> None:
    """Each is compared where it was fetched: loader workers have fetched it with their first
    batch.
    """
    digests = []
    for dataset in draws.divided_data(loaders):
        place, dataset.first_row = dataset.first_row, None
        digests.append(draws.digest_of_first_row(dataset) if place is None else int(place))
    _refuse_sliced_data(name, "samples as first ones", digests)


def _refuse_sliced_data(name: str, what: str, facts: list[int]) -> None:
    """Refuse data of a rank's own that Lightning divides among all ranks.

    Args:
        name: training, validation or test.
        what: the facts are.
        facts: of each data set; 0 where it is not known.
    """
    ranks = collectives.from_each_rank(facts) if facts else []
    known = [number for number in range(len(facts)) if all(rank[number] for rank in ranks)]
    other = _first_difference([[rank[number] for number in known] for rank in ranks])
    if other is not None:
        raise UserError(
            f"The {name} data has other {what} on rank {other[0]} than on rank 0, and Lightning "
            "divides each rank's data among all ranks again",
            "give every rank all of the data, in the same order, or divide it yourself and set "
            "Trainer(use_distributed_sampler=False) in src/train.py",
        )


# Weights


def _refuse_other_weights(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    ddp: Any = trainer.strategy.model
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters())
    if not ddp.broadcast_buffers:  # else each step begins with rank 0's
        tensors.update(module.named_buffers())
    trained = _trained(module)
    numbers = [checksum(tensor) * 2 + (name in trained) for name, tensor in tensors.items()]
    total = _digest_of_text(repr(numbers))
    if _first_difference(collectives.from_each_rank([total])) is None:
        return
    other = _first_difference(collectives.from_each_rank(numbers))
    if other is not None:
        rank, number = other
        raise UserError(
            f"After an epoch {list(tensors)[number]} is another one on rank {rank} than on rank 0",
            "change weights and buffers by the optimizer alone, or by numbers that are the same on "
            "every rank, and requires_grad on all ranks alike",
        )
