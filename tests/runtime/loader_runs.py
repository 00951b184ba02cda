"""Every kind of loader, stopped and resumed on the same and on other ranks; what came of each.

A cell is exact (the same bits as an undisturbed run, or on other ranks the same weights up to
rounding), `inexact` (the log says so), or rejected (a sentence). None is silent.
"""

import contextlib
import functools
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

import small_training
from small_training import Fit, Line, Numbers, newest_state, same
from small_training import fit as make_fit
from smlightning.cluster.session import current_cluster
from smlightning.data import batches, rng
from smlightning.errors import UserError
from smlightning_sagemaker.testing.processes import KILLED, run_ranks

ROWS, SIZE = 48, 6  # SIZE rows make a global batch
OPTIONS = {"epochs": 3, "checkpoint_steps": 1}
MOMENTS = {  # in which run which hook comes for which time
    "within an epoch": [("before_batch", 12)],
    "at an epoch's end": [("before_epoch", 2)],
    "twice": [("before_batch", 4), ("before_batch", 8)],
}
Point = tuple[torch.Tensor, torch.Tensor]


def point(row: int, noise: float) -> Point:
    return torch.tensor(row), torch.tensor([row / ROWS + noise])


class Augmented(Dataset):
    """Rows with a random number of torch's."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Point:
        return point(row, torch.rand(1).item())


class Whole(Augmented):
    """Whole batches, with a random number of each row's generator."""

    def __getitem__(self, batch: Any) -> Any:
        points = [point(row, rng.generator(row).random()) for row in batch.rows.tolist()]
        rows, values = map(torch.stack, zip(*points, strict=True))
        return rows, values, batch.weight(), torch.tensor(batch.scale)


class OwnOrder(Sampler):
    """Shuffles with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        yield from self.generator.permutation(ROWS).tolist()


class Shuffled(BatchSampler):
    """Batches in another order each epoch, which it counts."""

    times = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.times += 1
        given = list(super().__iter__())
        order = torch.randperm(len(given), generator=torch.Generator().manual_seed(self.times))
        yield from (given[number] for number in order.tolist())


class Stream(IterableDataset):
    """The part of a rank, which the stream can continue."""

    def __init__(self) -> None:
        self.done = 0

    def __len__(self) -> int:
        return ROWS // current_cluster().world_size

    def __iter__(self) -> Iterator[Point]:
        rows = range(ROWS)[current_cluster().rank :: current_cluster().world_size]
        self.done %= len(rows)
        while self.done < len(rows):
            self.done += 1
            yield point(rows[self.done - 1], torch.rand(1).item())

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.done = state_dict["done"]


def of_datasets(shuffled: bool) -> Any:
    rows = datasets.Dataset.from_dict({"row": range(ROWS)}).to_iterable_dataset(num_shards=4)
    rows = rows.shuffle(seed=1, buffer_size=8) if shuffled else rows
    cluster = current_cluster()
    return split_dataset_by_node(rows, cluster.rank, cluster.world_size)


def points_of(samples: list[dict[str, int]]) -> Point:
    rows = torch.tensor([sample["row"] for sample in samples])
    return rows, (rows / ROWS)[:, None] + torch.rand(len(rows), 1)


def plain_points_of(samples: list[dict[str, int]]) -> Point:
    """Without random numbers, whose state torchdata's workers do not keep."""
    rows = torch.tensor([sample["row"] for sample in samples])
    return rows, (rows / ROWS)[:, None]


Make = Callable[[Any, int], Any]
WORKERS = {"num_workers": 2, "shuffle": True}
LOADERS: dict[str, Make] = {
    "`batches.loader`": lambda trainer, size: batches.loader(
        Whole(), [1] * ROWS, size, trainer, 3, 0
    ),
    "`DataLoader`": lambda _, size: DataLoader(Augmented(), size, shuffle=True),
    "`DataLoader` with workers": lambda _, size: DataLoader(Augmented(), size, **WORKERS),
    "`DataLoader` with persistent workers": lambda _, size: DataLoader(
        Augmented(), size, persistent_workers=True, **WORKERS
    ),
    "`DataLoader` with a sampler of your own": lambda _, size: DataLoader(
        Augmented(), size, sampler=OwnOrder()
    ),
    "`DataLoader` with a batch sampler of your own": lambda _, size: DataLoader(
        Augmented(), batch_sampler=Shuffled(range(ROWS), size, False)
    ),
    "`DataLoader` of an `IterableDataset`": lambda _, size: DataLoader(Stream(), size),
    "`StatefulDataLoader` of an `IterableDataset`": lambda _, size: StatefulDataLoader(
        Stream(), size
    ),
    "`StatefulDataLoader` of a stream of `datasets`": lambda _, size: StatefulDataLoader(
        of_datasets(False), size, collate_fn=points_of
    ),
    "the same, with its `shuffle`": lambda _, size: StatefulDataLoader(
        of_datasets(True), size, collate_fn=points_of
    ),
}


WORKERS_OF_A_STREAM = "`StatefulDataLoader` of a stream of `datasets`, with workers"
HIDDEN: dict[str, Make] = {  # not in the table, whose streams have no workers
    WORKERS_OF_A_STREAM: lambda _, size: StatefulDataLoader(
        of_datasets(False), size, collate_fn=plain_points_of, num_workers=2
    )
}


class Model(Line):
    """Learns from each random number, and draws none itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, values, *weights = batch
        weight, scale = weights or (torch.ones(len(rows)), 1 / len(rows))
        self.trained.append(rows[weight > 0].tolist())
        losses = (self.net(values).sum(1) - rows / ROWS) ** 2
        return (losses * weight).sum() * scale

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)


def data_of(name: str, size: int) -> type:
    def train_dataloader(self: Any) -> Any:
        return {**LOADERS, **HIDDEN}[name](self.trainer, size)

    return type("Data", (Numbers,), {"train_dataloader": train_dataloader})


def options_of(name: str) -> dict[str, Any]:
    """A stream of `datasets` has no length."""
    is_endless = "of `datasets`" in name or "the same" in name
    return {**OPTIONS, "max_steps": 24} if is_endless else OPTIONS


def verdict(log: str, is_exact: bool) -> str:
    """The cell; fails if a run differs in silence."""
    if "inexact" in log or "warning: epoch" in log:
        return "`inexact`"
    assert is_exact, f"another result, and no line of it:\n{log}"
    return "exact"


def on_same_ranks(name: str, run: Fit) -> list[str]:
    data, options = data_of(name, SIZE), options_of(name)
    run(Model, data, output_dir="alone", **options)
    cells = []
    for moment, crashes in MOMENTS.items():
        with contextlib.redirect_stdout(io.StringIO()) as log:
            for crash in crashes:
                run(Model, data, output_dir=moment, crash=crash, **options)
            run(Model, data, output_dir=moment, **options)
        one, other = (newest_state(folder)["state_dict"] for folder in ("alone", moment))
        cells.append(verdict(log.getvalue(), same(one, other)))
    return cells


class Killed(Exception):
    """Ends the process instead of being raised."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def train_until(write: Any, name: str, moment: str) -> None:
    """Train until SIGKILL, at the same moment on each rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_training, "Crash", Killed)
        options = {**options_of(name), "batch_size": SIZE // 2, "output_dir": name}
        make_fit(patch)(Model, data_of(name, SIZE // 2), crash=MOMENTS[moment][0], **options)


def train_to_the_end(write: Any, name: str, folder: str, crash: Any = None) -> None:
    """Train on half of each global batch, from a checkpoint if there is one; record the weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_training, "Crash", Killed)
        options = {**options_of(name), "batch_size": SIZE // 2, "output_dir": folder}
        make_fit(patch)(Model, data_of(name, SIZE // 2), crash=crash, **options)
    state = newest_state(folder)["state_dict"]
    write({"weights": {key: value.tolist() for key, value in state.items()}})


def train_all(write: Any) -> None:
    """Train with each loader, from its checkpoint if there is one; record what came of it."""
    found: dict[str, Any] = {}
    for name in LOADERS:
        log, ended = io.StringIO(), ""
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(log):
            try:
                options = {**options_of(name), "batch_size": SIZE, "output_dir": name}
                make_fit(patch)(Model, data_of(name, SIZE), **options)
            except UserError as error:
                ended = str(error)
        state = newest_state(name)["state_dict"]
        weights = {key: value.tolist() for key, value in state.items()}
        found[name] = {"log": log.getvalue(), "ended": ended, "weights": weights}
    write(found)


def on_other_ranks(folder: Path) -> list[dict[str, str]]:
    """For both moments: killed on two ranks, resumed on one."""
    (alone,) = run_ranks(train_all, folder / "alone", 1)
    moments = []
    for number, moment in enumerate([*MOMENTS][:2]):
        for name in LOADERS:
            until = functools.partial(train_until, name=name, moment=moment)
            run_ranks(until, folder / str(number), 2, KILLED)
        (found,) = run_ranks(train_all, folder / str(number), 1)
        cells = {}
        for name in LOADERS:
            seen, whole = found[name], alone[name]["weights"]
            close = all(
                np.allclose(seen["weights"][key], whole[key], rtol=0, atol=1e-6) for key in whole
            )
            cells[name] = "rejected" if seen["ended"] else verdict(seen["log"], close)
        print(f"{moment}: {cells}")
        moments.append(cells)
    return moments
