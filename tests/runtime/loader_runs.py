"""Every kind of loader, stopped and resumed on the same and on other ranks; what came of each.

A cell is exact (the same bits as an undisturbed run, or on other ranks the same weights up to
rounding), `inexact` (the log says so), or rejected (a sentence). None is silent.

`LIBRARIES` are loaders of packages that `make loaders` installs into a folder of their own.
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
import pytorch_lightning as pl
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import small_training
from small_training import Fit, Line, Numbers, newest_state, same
from small_training import fit as make_fit
from smlightning.checkpoints import agreement
from smlightning.checkpoints.callback import Checkpoints
from smlightning.cluster import signals as stop
from smlightning.cluster import watch
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
INTERRUPTIONS = {  # on two ranks with two workers each: the global batch, and the signal in it
    "in the second epoch": [(11, "SIGTERM")],
    "at an epoch's last batch": [(8, "SIGTERM")],
    "killed": [(19, "SIGKILL")],
    "stopped twice": [(4, "SIGTERM"), (12, "SIGTERM")],
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
    """The part of a rank and worker, which the stream can continue."""

    def __init__(self) -> None:
        self.done = 0

    def __len__(self) -> int:
        return ROWS // current_cluster().world_size

    def __iter__(self) -> Iterator[Point]:
        rows = range(ROWS)[current_cluster().rank :: current_cluster().world_size]
        worker = get_worker_info()
        rows = rows[worker.id :: worker.num_workers] if worker else rows
        self.done %= len(rows)
        while self.done < len(rows):
            self.done += 1
            yield point(rows[self.done - 1], torch.rand(1).item())

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "random": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = state_dict["done"]
        torch.set_rng_state(state_dict["random"])


def of_datasets(shuffled: bool) -> Any:
    rows = datasets.Dataset.from_dict({"row": range(ROWS)}).to_iterable_dataset(num_shards=4)
    rows = rows.shuffle(seed=1, buffer_size=8) if shuffled else rows
    cluster = current_cluster()
    return split_dataset_by_node(rows, cluster.rank, cluster.world_size)


def points_of(samples: list[dict[str, int]]) -> Point:
    """Without random numbers in a worker, whose state torchdata does not keep."""
    rows = torch.tensor([sample["row"] for sample in samples])
    noise = torch.zeros(len(rows), 1) if get_worker_info() else torch.rand(len(rows), 1)
    return rows, (rows / ROWS)[:, None] + noise


def of_litdata(folder: Path) -> Any:
    import litdata
    from litdata.streaming.writer import BinaryWriter

    if not folder.is_dir():
        folder.mkdir()
        writer = BinaryWriter(str(folder), chunk_size=6)
        for row in range(ROWS):
            writer[row] = {"row": row}
        writer.done()
        writer.merge()
    return litdata.StreamingDataset(str(folder), shuffle=True, seed=1)


def litdata_loader(size: int, workers: int) -> Any:
    import litdata

    rows = of_litdata(Path("rows").absolute())
    return litdata.StreamingDataLoader(
        rows, batch_size=size, num_workers=workers, collate_fn=points_of
    )


def write_mosaic(folder: Path) -> None:
    import streaming

    with streaming.MDSWriter(out=str(folder), columns={"row": "int"}, size_limit=200) as writer:
        for row in range(ROWS):
            writer.write({"row": row})


def mosaic_loader(size: int, workers: int) -> Any:
    import streaming

    rows = streaming.StreamingDataset(
        local=str(Path("rows").absolute()), batch_size=size, shuffle=True, shuffle_seed=1
    )
    return streaming.StreamingDataLoader(
        rows, batch_size=size, num_workers=workers, collate_fn=points_of
    )


def write_tars(folder: Path) -> None:
    import webdataset

    folder.mkdir()
    for shard in range(4):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for row in range(shard, ROWS, 4):
                writer.write({"__key__": f"{row:04}", "row.cls": row})


def of_tars() -> Any:
    import webdataset

    tars = sorted(map(str, Path("rows").absolute().glob("*.tar")))
    rows = webdataset.WebDataset(tars, nodesplitter=webdataset.split_by_node, shardshuffle=False)
    return rows.decode().map(lambda sample: {"row": sample["row.cls"]})


def web_loader(size: int, workers: int) -> Any:
    import webdataset

    return webdataset.WebLoader(
        of_tars(), batch_size=size, num_workers=workers, collate_fn=points_of
    )


Make = Callable[[Any, int, int], Any]
PLAIN_WORKERS = "`DataLoader` with workers"
LOADERS: dict[str, Make] = {
    "`batches.loader`": lambda trainer, size, workers: batches.loader(
        Whole(), [1] * ROWS, size, trainer, 3, workers
    ),
    "`DataLoader`": lambda _, size, workers: DataLoader(
        Augmented(), size, shuffle=True, num_workers=workers
    ),
    PLAIN_WORKERS: lambda _, size, workers: DataLoader(
        Augmented(), size, shuffle=True, num_workers=2
    ),
    "`DataLoader` with persistent workers": lambda _, size, workers: DataLoader(
        Augmented(), size, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "`DataLoader` with a sampler of your own": lambda _, size, workers: DataLoader(
        Augmented(), size, sampler=OwnOrder(), num_workers=workers
    ),
    "`DataLoader` with a batch sampler of your own": lambda _, size, workers: DataLoader(
        Augmented(), batch_sampler=Shuffled(range(ROWS), size, False), num_workers=workers
    ),
    "`DataLoader` of an `IterableDataset`": lambda _, size, workers: DataLoader(
        Stream(), size, num_workers=workers
    ),
    "`StatefulDataLoader` of an `IterableDataset`": lambda _, size, workers: StatefulDataLoader(
        Stream(), size, num_workers=workers
    ),
    "`StatefulDataLoader` of a stream of `datasets`": lambda _, size, workers: StatefulDataLoader(
        of_datasets(False), size, collate_fn=points_of, num_workers=workers
    ),
    "the same, with its `shuffle`": lambda _, size, workers: StatefulDataLoader(
        of_datasets(True), size, collate_fn=points_of, num_workers=workers
    ),
}
LIBRARIES: dict[str, tuple[Make, Callable[[Path], Any]]] = {  # and what writes its rows
    "litdata's `StreamingDataLoader`": (
        lambda _, size, workers: litdata_loader(size, workers), of_litdata,
    ),
    "mosaicml-streaming's `StreamingDataLoader`": (
        lambda _, size, workers: mosaic_loader(size, workers), write_mosaic,
    ),
    "webdataset's `WebLoader`": (
        lambda _, size, workers: web_loader(size, workers), write_tars,
    ),
    "`DataLoader` of a `WebDataset`": (
        lambda _, size, workers: DataLoader(
            of_tars(), size, num_workers=workers, collate_fn=points_of
        ), write_tars,
    ),
}  # fmt: skip


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


def data_of(name: str, size: int, workers: int = 0) -> type:
    make = LIBRARIES[name][0] if name in LIBRARIES else LOADERS[name]

    def train_dataloader(self: Any) -> Any:
        return make(self.trainer, size, workers)

    return type("Data", (Numbers,), {"train_dataloader": train_dataloader})


def options_of(name: str) -> dict[str, Any]:
    """A stream of `datasets` and one of tars have no length."""
    texts = ("of `datasets`", "the same", "WebLoader", "WebDataset")
    is_endless = any(text in name for text in texts)
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


class Interruption(pl.Callback):
    """Sends this rank a signal within a global batch."""

    def __init__(self, step: int, name: str) -> None:
        self.step, self.name = step, name

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Checkpoints):
                callback.writer.finish()  # while it is being written, the next one is left out
        if trainer.global_step == self.step - 1:
            os.kill(os.getpid(), getattr(signal, self.name))


def train_a_rank(write: Any, name: str, folder: str, signals: tuple[Any, ...] = ()) -> None:
    """Train with two workers, from a checkpoint if there is one; record what came of it.

    Args:
        signals: none, or a global batch and the signal that comes in it.
    """
    ended = ""
    stop.install()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "SECONDS", 0.0)  # the ranks agree after each batch
        patch.setattr(watch, "GRACE", 30.0)  # a busy machine's processes may pause
        options = {**options_of(name), "batch_size": SIZE // 2, "output_dir": folder}
        callbacks = (Interruption(*signals),) if signals else ()
        try:
            make_fit(patch)(Model, data_of(name, SIZE // 2, 2), callbacks=callbacks, **options)
        except SystemExit:
            write({"ended": "stopped"})
            os._exit(0)  # at once: a process that takes longer to end is killed
        except UserError as error:
            ended = str(error)
    weights = newest_state(folder)["state_dict"]
    values = {key: value.tolist() for key, value in weights.items()}
    write({"ended": ended, "weights": values})


def on_two_ranks(name: str, folder: Path) -> list[str]:
    """The row of a loader on two ranks with two workers each: a cell for each interruption."""
    folder.mkdir()
    if name in LIBRARIES:
        LIBRARIES[name][1](folder / "rows")
    until = functools.partial(train_a_rank, name=name)
    alone, *_ = run_ranks(functools.partial(until, folder="alone"), folder, 2)
    assert not alone["ended"], alone["ended"]
    cells = []
    for number, signals in enumerate(INTERRUPTIONS.values()):
        part = functools.partial(until, folder=str(number))
        logs, _ended = "", ""
        for each in signals:
            status = KILLED if each[1] == "SIGKILL" else 0
            found, *_ = run_ranks(functools.partial(part, signals=each), folder, 2, status)
            logs += found["log"]
            assert status or found["ended"], f"not interrupted at {each}:\n{found['log']}"
        resumed, *_ = run_ranks(part, folder, 2)
        logs += resumed["log"]
        print(f"{name}: {[*INTERRUPTIONS][number]}: {resumed['ended']}\n{logs}")
        cells.append(
            "rejected"
            if resumed["ended"]
            else verdict(logs, resumed["weights"] == alone["weights"])
        )
    return cells


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
