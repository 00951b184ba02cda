"""Trainings of a line on several ranks, each rank a process; what each saw is recorded.

A test gives a rank's function by name, since processes get no functions of a test's own.
"""

import functools
import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torchmetrics
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data._utils import worker as loader_worker

import dist
import small_training
from options import Options
from smlightning.cluster import collectives, session
from smlightning.data import rng
from smlightning.errors import described
from smlightning.training import loaders, rank_checks
from smlightning.training.buckets import BucketOrder
from smlightning.training.checks import training_checks
from smlightning.training.seeds import StepSeed
from smlightning_sagemaker.testing import owner, recording
from smlightning_sagemaker.testing.processes import KILLED, Record, run_ranks

ROWS = 36
SIZE = 2


def send_states(record: Callable[[Record], None]) -> None:
    """Send a loader's state to rank 0, longer the higher the rank; record the lengths it got."""
    collectives.CHUNK = 10
    with session.session() as cluster:
        torch.distributed.init_process_group(
            "gloo", rank=cluster.rank, world_size=cluster.world_size
        )
        state = {"extra": 300 * cluster.rank * "x"}
        loader: Any = SimpleNamespace(state=lambda batches: state)
        states = loaders.states_of_ranks([loader], 1)
        record({"lengths": [len(each["states"][0]["extra"]) for each in states]})


class Noisy(Dataset):
    """Rows with a random number from each generator that people use, and from the row's own."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: Any) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = [torch.rand(1).item(), float(np.random.rand()), random.random()]
        drawn += [rng.generator(int(row)).random(), float(rng.epoch())]
        return torch.tensor(int(row)), torch.tensor(drawn, dtype=torch.float64)


class Pairs(BatchSampler):
    """A user's batch sampler: rows in pairs, shuffled by Python's generator."""

    def __init__(self, sampler: Sampler, batch_size: int, drop_last: bool) -> None:
        super().__init__(sampler, batch_size, drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        random.shuffle(batches)
        yield from batches


def of_subset(generator: Any = None) -> dict[str, Any]:
    return {"sampler": SubsetRandomSampler(range(0, ROWS, 2), generator), "batch_size": SIZE}


def of_weights(generator: Any = None) -> dict[str, Any]:
    weights = [1.0 + row % 3 for row in range(ROWS)]
    sampler = WeightedRandomSampler(weights, 24, generator=generator)
    return {"sampler": sampler, "batch_size": SIZE}


def of_batches(generator: Any = None) -> dict[str, Any]:
    sampler = SubsetRandomSampler(range(ROWS), generator)
    return {"batch_sampler": Pairs(sampler, SIZE, False)}


def shuffled(generator: Any = None) -> dict[str, Any]:
    return {"shuffle": True, "batch_size": SIZE, "generator": generator}


LOADERS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (of_subset, of_weights, of_batches, shuffled)
}


class NumberedStream(IterableDataset):
    """Rows of a rank's and a worker's own, with a number from a generator that is in its state."""

    def __init__(self) -> None:
        self.done = 0
        self.generator = random.Random(1)

    def __len__(self) -> int:
        return ROWS // session.current_cluster().world_size

    def __iter__(self) -> Iterator[Any]:
        worker, cluster = get_worker_info(), session.current_cluster()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        places = range(ROWS)[cluster.rank * workers + number :: cluster.world_size * workers]
        if self.done == len(places):  # of the epoch before
            self.done = 0
        for row in places[self.done :]:
            self.done += 1
            drawn = [self.generator.random(), float(row), float(not worker) * random.random()]
            yield torch.tensor(row), torch.tensor(drawn, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "generator": self.generator.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = state_dict["done"]
        version, numbers, rest = state_dict["generator"]
        self.generator.setstate((version, tuple(numbers), rest))


class Rows(pl.LightningDataModule):
    """Loaders by the name of a function above."""

    def __init__(self, kind: str, workers: int = 0, persistent: bool = False, own: bool = False):
        super().__init__()
        self.kind, self.own = kind, own
        self.workers = {"num_workers": workers, "persistent_workers": persistent}

    def train_dataloader(self) -> DataLoader:
        generator = torch.Generator().manual_seed(3) if self.own else None
        return DataLoader(Noisy(), **LOADERS[self.kind](generator), **self.workers)


class Seen(pl.LightningModule):
    """A weight, and the rows and random numbers of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows: list[list[int]] = []
        self.draws: list[list[list[float]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, drawn = batch
        self.rows.append(rows.tolist())
        self.draws.append(drawn.tolist())
        return self.weight * drawn.float().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(
    write: Callable[[Record], Any],
    kind: str,
    callbacks: list[pl.Callback],
    wrap: Callable[[pl.LightningDataModule], pl.LightningDataModule] = lambda data: data,
    seed: int = 5,
    model: type = Seen,
    data: type = Rows,
    logger: Any = False,
    strategy: tuple[Any, ...] = ("ddp",),
    divides: bool = True,
    **options: Any,
) -> None:
    """Two epochs with these callbacks; ``divides``: the Trainer's ``use_distributed_sampler``."""
    pl.seed_everything(seed, verbose=False)
    module = model()
    with dist.session() as cluster:
        chosen, devices, num_nodes = dist.get_initialization_info(*strategy)
        trainer = pl.Trainer(
            accelerator=cluster.accelerator,
            strategy=chosen,
            devices=devices,
            num_nodes=num_nodes,
            max_epochs=2,
            use_distributed_sampler=divides,
            logger=logger,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        trainer.fit(module, datamodule=wrap(data(kind, **options)))
    write({"rows": module.rows, "draws": module.draws})


def train_here(write: Callable[[Record], Any], kind: str, seed: int = 5, **options: Any) -> None:
    """With what train.py gives the Trainer for it."""
    wrap = loaders.Loaders(seed).resumable
    train(write, kind, [StepSeed(seed)], wrap, seed, **options)


def train_own_division(write: Callable[[Record], Any]) -> None:
    """With all checks, and a sampler that divides the rows itself."""
    wrap = loaders.Loaders(5).resumable
    checks = [StepSeed(5), *training_checks()]
    train(write, "own", checks, wrap, data=OwnDivision, divides=False)


def ranks(body: Any, folder: Path, world_size: int, **options: Any) -> list[Record]:
    """Train on ``world_size`` ranks, and return each rank's record."""
    ended = KILLED if options.get("kill_at") else 0
    return run_ranks(functools.partial(body, **options), folder, world_size, ended)


class Positional(Rows):
    """A loader whose arguments are positions, as chemprop's build_dataloader makes it."""

    def train_dataloader(self) -> DataLoader:
        sampler = SubsetRandomSampler(range(ROWS)) if self.kind == "sampler" else None
        return DataLoader(Noisy(), SIZE, sampler is None, sampler)


class NoisyLine(small_training.Line):
    """Learns from random numbers, so that each of them changes its weights."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, drawn = batch
        noise = drawn[:, :3].sum(1, keepdim=True).float()
        return torch.nn.functional.mse_loss(self.net(noise), rows[:, None].float())


def train_with_train_py(
    write: Callable[[Record], Any],
    kind: str,
    workers: int,
    persistent: bool,
    kill_at: int,
) -> None:
    """train.py with the loaders of `Rows`; SIGKILL after so many batches of this run."""

    class Data(small_training.Numbers):
        def train_dataloader(self) -> DataLoader:
            options = {"num_workers": workers, "persistent_workers": persistent}
            if kind == "stream":
                from torchdata.stateful_dataloader import StatefulDataLoader

                return StatefulDataLoader(NumberedStream(), SIZE, **options)
            return DataLoader(Noisy(), **LOADERS[kind](), **options)

    loader_worker.MP_STATUS_CHECK_INTERVAL = 0.5  # s, not 5, until a killed rank's lock is free
    train_py = owner.load().train
    owner.load().data.Data, owner.load().model.Model = Data, NoisyLine
    train_py.MONITOR, train_py.MODE = "val/loss", "min"
    recording.train(write, {"epochs": 2, "checkpoint_steps": 1, "batch_size": SIZE}, kill_at)


class WithoutSync(small_training.Line):
    """As a library's model on one rank: each rank logs its own values."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({"test_loss": self.loss(batch)})


class WithSync(WithoutSync):
    """A class of the project's own around it, as in docs/model.md."""

    def log(self, name: str, value: Any, **options: Any) -> None:
        super().log(name, value, **{**options, "sync_dist": not self.trainer.training})


class LossIsAMetric(WithoutSync):
    """As chemprop's: metrics are logged as they are, for each step, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.criterion = torchmetrics.MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.criterion(loss.detach())
        self.log("train_loss", self.criterion, on_epoch=True)
        self.log("train_metric", self.criterion)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.error(self.loss(batch))
        self.log("val_loss", self.error)

    test_step = small_training.Line.test_step  # warns of test/loss


LIBRARIES = {each.__name__: each for each in (WithoutSync, WithSync, LossIsAMetric)}


def train_a_librarys_model(write: Callable[[Record], Any], name: str) -> None:
    train_py = owner.load().train
    owner.load().data.Data, owner.load().model.Model = small_training.Numbers, LIBRARIES[name]
    train_py.MONITOR, train_py.MODE = "val_loss", "min"
    recording.train(write, {"epochs": 2, "batch_size": small_training.SIZE}, 0)


class OtherLabels(Rows):
    """An order of labels for each process, as of a set of texts."""

    def setup(self, stage: str | None = None) -> None:
        rank = torch.distributed.get_rank()
        self.labels = ["a", "b"] if rank == 0 else ["b", "a"]


class NoisyStream(IterableDataset):
    """All rows on every rank, each moved a little."""

    def __iter__(self) -> Iterator[Any]:
        for row in range(ROWS):
            yield torch.tensor(row), torch.rand(3) + random.random() + np.random.rand()


class UndividedStream(Rows):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(NoisyStream(), SIZE)


class OtherValidation(Rows):
    """One batch more on rank 0."""

    def val_dataloader(self) -> DataLoader:
        rank = torch.distributed.get_rank()
        count = 8 - 2 * rank
        sampler: Any = DistributedSampler(range(count), 1, 0, shuffle=False)
        return DataLoader(range(count), SIZE, sampler=sampler)  # type: ignore[arg-type]


class Validated(Seen):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


class Logging(Seen):
    """Metrics of the ranks' own, and of all."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("train/own", float(self.global_rank))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/own", float(self.global_rank))
        self.log("val/all", float(self.global_rank), sync_dist=True)


class Evaluated(Rows):
    def val_dataloader(self) -> DataLoader:
        return DataLoader(range(8), SIZE)  # type: ignore[arg-type]


class WithoutLength(Sampler):
    def __iter__(self) -> Any:
        return iter(range(8))


class OddlyEvaluated(Rows):
    """Two ranks get equally many rows of 9 and of 8; of 3001, one more is not seen."""

    def val_dataloader(self) -> list[DataLoader]:
        rows: list[Any] = [range(rows) for rows in (9, 8, 3001)]
        loaders = [DataLoader(each, 500) for each in rows]
        return [*loaders, DataLoader(rows[1], 2, sampler=WithoutLength())]


class Evaluating(Seen):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        pass


class ReadInSetup(Evaluated):
    """Its rows are read before training, as for their mean."""

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        read(self)


def read(data: pl.LightningDataModule) -> None:
    for loader in (data.train_dataloader(), data.val_dataloader()):
        print("batches:", sum(1 for _ in loader), flush=True)


class Reading(Seen):
    def setup(self, stage: str) -> None:
        read(self.trainer.datamodule)  # type: ignore[attr-defined]

    def on_fit_start(self) -> None:
        read(self.trainer.datamodule)  # type: ignore[attr-defined]


class Drifting(Seen):
    """Changes a weight by what only its own rank has seen."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.weight += batch[1].float().mean()


class OtherRows(Rows):
    """An order of rows for each process, as of a set of texts; equally many."""

    def train_dataloader(self) -> DataLoader:
        rank = torch.distributed.get_rank()
        order = [(row + rank) % ROWS for row in range(ROWS)]
        return DataLoader(Subset(Noisy(), order), SIZE, num_workers=1)


class OtherOrder(Rows):
    """A sampler of rows that each process has chosen in its own way; equally many."""

    def train_dataloader(self) -> DataLoader:
        first = torch.distributed.get_rank()
        return DataLoader(Noisy(), SIZE, sampler=SubsetRandomSampler(range(first, first + 20)))


class OtherSeed(Rows):
    """The user's own DistributedSampler, with the seed of a rank."""

    def train_dataloader(self) -> DataLoader:
        rank = torch.distributed.get_rank()
        return DataLoader(Noisy(), SIZE, sampler=DistributedSampler(Noisy(), seed=rank))


class OwnDivision(Rows):
    """A sampler that gives each rank its own rows, as some libraries' do."""

    def train_dataloader(self) -> DataLoader:
        rank = torch.distributed.get_rank()
        return DataLoader(Noisy(), SIZE, sampler=range(ROWS)[rank::2])  # type: ignore[arg-type]


class OtherRandomness(Rows):
    """Rows that each process changes by random numbers of its own, which nobody can seed."""

    class Shaken(Noisy):
        def __getitem__(self, row: Any) -> tuple[torch.Tensor, torch.Tensor]:
            number, drawn = super().__getitem__(row)
            return number, drawn + secrets.randbelow(2)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.Shaken(), SIZE)


class Uneven(IterableDataset):
    """Other rows on each rank, and more on rank 1."""

    def __iter__(self) -> Iterator[Any]:
        rank = torch.distributed.get_rank()
        for row in range(rank, 12 + 12 * rank, 2):
            yield torch.tensor(row), torch.full((3,), float(row))


class UnevenStreams(Rows):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Uneven(), SIZE)


class Unused(Seen):
    """A layer that no loss needs."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = torch.nn.Linear(1, 1)


class Table(Seen):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3, dtype=torch.int16))


class OtherRate(NoisyLine):
    """Another learning rate on rank 1, in a network without equal layers."""

    def on_train_epoch_end(self) -> None:
        optimizer: Any = self.optimizers()
        optimizer.param_groups[0]["lr"] *= 1 + self.global_rank


class OtherReplica(NoisyLine):
    """A shard of the second replica is changed."""

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 3:
            with torch.no_grad():
                self.net[0].weight.to_local().add_(1)


class Statistics(Seen):
    """Manual optimization, and BatchNorm's statistics after the last validation."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        normed = self.net(batch[1][:, :1].float())
        self.manual_backward(super().training_step(batch, batch_idx) + normed.mean())
        optimizer.step()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.draws = [[self.net[1].running_mean.tolist()]]


MISTAKES: dict[str, tuple[type, type, str]] = {
    "rows": (Seen, OtherRows, "shuffled"),
    "order": (Seen, OtherOrder, "shuffled"),
    "seed": (Seen, OtherSeed, "shuffled"),
    "own randomness": (Seen, OtherRandomness, "shuffled"),
    "uneven streams": (Seen, UnevenStreams, "shuffled"),
    "unused layer": (Unused, Rows, "shuffled"),
    "type": (Table, Rows, "shuffled"),
    "learning rate": (OtherRate, Rows, "shuffled"),
    "replica": (OtherReplica, Rows, "shuffled"),
    "labels": (Seen, OtherLabels, "shuffled"),
    "undivided stream": (Seen, UndividedStream, "shuffled"),
    "validation": (Validated, OtherValidation, "shuffled"),
    "weights": (Drifting, Rows, "shuffled"),
    "none": (Logging, Evaluated, "shuffled"),
}


def make_mistake(write: Callable[[Record], Any], name: str) -> None:
    """Record the line that ends a training with this mistake."""
    model, data, kind = MISTAKES[name]
    problem = ""
    callbacks = [StepSeed(5), BucketOrder(), *training_checks()]
    strategy = STRATEGIES.get(name, ("ddp",))
    rank_checks.END_SECONDS = 1.0
    try:
        train(
            write,
            kind,
            callbacks,
            loaders.Loaders(5).resumable,
            model=model,
            data=data,
            strategy=strategy,
        )
    except Exception as error:
        problem = described(error)
    write({"problem": problem})


STRATEGIES: dict[str, tuple[Any, ...]] = {"learning rate": ("fsdp",), "replica": ("fsdp", 2)}


def start_differently(write: Callable[[Record], Any], what: str) -> None:
    """Record the line that ends a start with other options or another file on rank 1."""
    rank, problem = int(os.environ["RANK"]), ""
    if what == "file":
        file = Path(f"own{rank}.py").absolute()
        file.write_text(f"NUMBER = {rank}")
        sys.modules["own"] = ModuleType("own")
        sys.modules["own"].__file__ = str(file)
    other = {"lr": 0.1 * (rank + 1)} if what == "option" else {}
    options = Options(**other, hang_seconds=900 + rank)
    try:
        with session.session():
            rank_checks.check_start(options)
    except Exception as error:
        problem = described(error)
    write({"problem": problem})
