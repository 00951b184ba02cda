"""Counts what ranks send each other for the package's own purposes, with 8 to 4,096 ranks.

    OMP_NUM_THREADS=1 python benchmarks/scale.py --chart docs/scale.png   # two minutes
    OMP_NUM_THREADS=1 python benchmarks/scale.py --ranks 8 64 --processes 8

Two processes run a whole training: its session, Trainer, callbacks and checkpoints. They believe
that they are rank 0 and the first rank of the last host. The ranks between them are played: what
the second process writes into the store for itself is written for each of them as well. The two
share a group of gloo, so each sum is the two's.

Counted are requests to the store with the bytes of keys and values, and all-reduces with the bytes
of their tensors, in each of PARTS: for each heartbeat, agreement and checkpoint, else in all. What
is asked again while a rank waits counts once. A get is two messages: TCPStore waits for the key,
then reads it. DDP's gradients are not counted.

Then that many real processes meet in one session. The status is 1 if a count grows faster than the
ranks on rank 0, or faster than their logarithm on the other rank. Bytes may grow by a tenth more:
larger ranks have more digits.
"""

import functools
import json
import math
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common

sys.path.insert(0, str(common.ROOT / "packages/smlightning"))

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed

from smlightning.checkpoints import callback
from smlightning.checkpoints.agreement import Agreement
from smlightning.checkpoints.position import Position
from smlightning.checkpoints.writer import CheckpointWriter
from smlightning.cluster import session, strategies
from smlightning.data import batches
from smlightning.run import Run
from smlightning.training import rank_checks, watchdog
from smlightning.training.options import TrainerOptions
from smlightning.training.watchdog import HangWatchdog
from smlightning_sagemaker.testing.processes import Record, run_ranks

RANKS = (8, 64, 512, 4096)
PER_HOST = 8
STEPS = 6
SHARDED = 5  # checkpoints: more than are kept
HANG_SECONDS = 60.0
ROWS = 1_000_000  # of the data that is divided
PARTS = {
    "meeting": [(session, "_meet")],
    "checks": [
        *[(rank_checks.EqualRanks, name) for name in vars(rank_checks.EqualRanks) if "on_" in name],
        (rank_checks.EqualRanks, "setup"),
        (rank_checks.DividedData, "on_train_batch_start"),
        (rank_checks.SharedMetrics, "_compare"),
        (callback, "equal_on_ranks"),
        (callback, "equally_many"),
    ],
    "heartbeat": [(HangWatchdog, "_beat")],
    "agreement": [(Agreement, "ask")],
    "checkpoint": [(callback.Checkpoints, "_save"), (CheckpointWriter, "_write")],
    "end": [(session, "_end_together")],
}
COUNTS = ("messages", "bytes", "sums", "summed")

Facts = dict[str, float]


class Counter:
    """Counts messages, bytes, processor time and memory of this process, for each part."""

    def __init__(self) -> None:
        self.parts: dict[str, Facts] = defaultdict(lambda: defaultdict(float))
        self.here = threading.local()
        self.names: dict[str, str] = {}  # other names of parts, from now on

    def install(self) -> None:
        """Count in all functions of PARTS, all sums and all requests to the store."""
        for part, functions in PARTS.items():
            for owner, name in functions:
                setattr(owner, name, self._counted(part, getattr(owner, name)))
        module: Any = torch.distributed
        module.all_reduce = self._sum(module.all_reduce)
        thread: Any = HangWatchdog
        thread._write_beat = self._new_beat(thread._write_beat)
        opened: Any = session._of_this_session
        meeting: Any = session
        meeting._of_this_session = lambda store: session.RankStore(Played(opened(store), self))

    def message(self, request: tuple[Any, ...], messages: int, size: int) -> None:
        if getattr(self.here, "part", None) and request not in self.here.asked:
            self.here.asked.add(request)
            self.add("messages", messages)
            self.add("bytes", size)

    def add(self, name: str, amount: float) -> None:
        if part := getattr(self.here, "part", None):
            self.parts[part][name] += amount

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if getattr(self.here, "part", None):  # a part of another one
            yield
            return
        self.here.part, self.here.asked = self.names.get(name, name), set()
        before, began = memory("VmRSS"), time.thread_time()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        try:
            yield
        finally:
            facts = self.parts[self.here.part]
            if name != "heartbeat":  # a thread, as long as training
                facts["seconds"] += time.thread_time() - began
                facts["memory"] = max(facts["memory"], memory("VmHWM") - before)
            self.here.part = None

    def _counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            with self.part(part):
                self.add("calls", function.__name__ == "_save")  # each checkpoint is counted
                return function(*arguments, **options)

        return counted

    def _new_beat(self, write: Callable[..., None]) -> Callable[..., None]:
        """Keep the counts of the largest beat: some come before training, and read no other."""
        largest: Facts = defaultdict(float)

        def beat(*arguments: Any) -> None:
            facts = self.parts["heartbeat"]
            if facts["bytes"] > largest["bytes"]:
                largest.update(facts)
            facts.clear()
            self.here.asked = set()
            write(*arguments)

        self.largest_beat = largest
        return beat

    def _sum(self, all_reduce: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            work = all_reduce(tensor, *arguments, **options)
            is_wait = tensor.ndim == 0 and tensor.dtype == torch.int64 and tensor > 0
            if not is_wait:  # no flag for which the ranks ask again
                self.add("sums", 1)
                self.add("summed", tensor.nbytes)
            return work

        return counted


class Played:
    """The store of a session, in which the second process writes for all ranks after the first."""

    def __init__(self, ranks: session.RankStore, counter: Counter) -> None:
        self.store, self.counter = ranks.store, counter
        cluster = session.current_cluster()
        self.rank, self.played = cluster.rank, range(1, cluster.world_size)

    def set(self, key: str, value: str) -> None:
        self.counter.message(("set", key), 1, len(key) + len(value))
        if self.rank and key.endswith(f"/{self.rank}"):
            keys = [key.removesuffix(str(self.rank)) + str(rank) for rank in self.played]
            values = [self._of_rank(rank, key, value) for rank in self.played]
            self.store.multi_set(keys, values)
        else:
            self.store.set(key, value)

    def _of_rank(self, rank: int, key: str, value: str) -> str:
        if key.startswith("batches/"):  # the digest of the rank's own batch
            return json.dumps(json.loads(value) + rank)
        return value.replace(f"{self.rank:05d}-of", f"{rank:05d}-of")

    def add(self, key: str, amount: int) -> int:
        self.counter.message(("add", key, amount), 1, len(key) + 8)
        is_own = key.endswith("/times")  # a key of one rank
        times = len(self.played) if self.rank and not is_own else 1
        return self.store.add(key, amount * times)

    def compare_set(self, key: str, expected: str, value: str) -> Any:
        self.counter.message(("compare", key), 1, len(key) + len(value))
        return self.store.compare_set(key, expected, value)

    def check(self, keys: list[str]) -> bool:
        self.counter.message(("check", *keys), 1, sum(map(len, keys)))
        return self.store.check(keys)

    def get(self, key: str) -> bytes:
        value = self.store.get(key)
        self.counter.message(("get", key), 2, 2 * len(key) + len(value))
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        values = self.store.multi_get(keys)
        size = 2 * sum(map(len, keys)) + sum(map(len, values))
        self.counter.message(("get", *keys), 2, size)
        return values

    def delete_key(self, key: str) -> bool:
        self.counter.message(("delete", key), 1, len(key))
        return self.store.delete_key(key)


def memory(name: str) -> float:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at most."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(status.partition(f"{name}:")[2].split()[0])


# The model and data of the training


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, share: batches.Share) -> torch.Tensor:
        return torch.from_numpy(np.sin(np.outer(1.0 + share.rows, [1, 2, 3])).astype(np.float32))


class Data(pl.LightningDataModule):
    """Two rows of a batch for each rank."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.rows = Rows(2 * ranks * STEPS)
        self.fingerprint, self.labels = "rows", ["a", "b"]

    def loader(self, seed: int | None = None) -> Any:
        return batches.loader(self.rows, np.ones(len(self.rows)), 2, self.trainer, seed, 0)

    def train_dataloader(self) -> Any:
        return self.loader(seed=0)

    val_dataloader = test_dataloader = loader


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(100)])
        self.labels = ["a", "b"]

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("val/loss", self.training_step(batch), sync_dist=True)

    def test_step(self, batch: torch.Tensor) -> None:
        self.log("test/loss", self.training_step(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)

    def save(self, directory: Path) -> None:
        pass

    draw = save


def train(write: Callable[[Record], Any], ranks: int, control: bool) -> None:
    """The work of the two processes, each as a rank of so many."""
    is_first = os.environ["RANK"] == "0"
    per_host = min(PER_HOST, ranks // 2)
    rank = 0 if is_first else ranks - per_host
    variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": per_host}
    os.environ.update({name: str(value) for name, value in variables.items()})
    counter = Counter()
    counter.install()
    # Its sum over two ranks is not that over all: three times 4 MiB, whatever the ranks.
    strategies.verify_all_reduce = lambda *_: None  # type: ignore[assignment]
    watchdog.HEARTBEATS = 4 * int(HANG_SECONDS)  # four in a second: the training is short
    with session.session() as cluster:
        group = f"file://{Path.cwd()}/group"
        torch.distributed.init_process_group("gloo", group, rank=int(not is_first), world_size=2)
        options = TrainerOptions(checkpoint_steps=2, hang_seconds=HANG_SECONDS, resume="never")
        run = Run(options, monitor="val/loss", mode="min")
        trainer = pl.Trainer(
            accelerator="cpu",
            strategy=strategies.ClusterStrategy(cluster),
            devices=cluster.local_world_size,
            num_nodes=cluster.num_nodes,
            max_epochs=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=run.callbacks(),
            logger=run.loggers(),
        )
        run.train_test_save(trainer, Model(), Data(ranks))
        counter.names = {"checkpoint": "checkpoint, FSDP"}
        write_shards(counter, ranks)
        with counter.part("data"):
            divided = batches.GlobalBatches(np.ones(ROWS), 4 * ranks, rank, ranks, seed=0)
            assert sum(share.real for share in divided) <= -(-ROWS // ranks) + 4
        if control:
            with counter.part("control"):
                exchange_everything(session._session.store, cluster)
    run.finish()
    counter.parts["heartbeat"] = counter.largest_beat
    counter.parts["agreement"]["calls"] = counter.parts["agreement"]["sums"]
    for facts in counter.parts.values():
        calls = facts.pop("calls", 0) or 1
        facts.update({name: facts[name] / calls for name in (*COUNTS, "seconds")})
        facts.setdefault("memory", 0.0)
    write(counter.parts)


def write_shards(counter: Counter, ranks: int) -> None:
    """Checkpoints as with FSDP over all ranks: each rank writes its shard, and rank 0 names all."""
    writer = CheckpointWriter(Path("sharded"), 1, shard_size=ranks)
    for step in range(SHARDED):
        writer.keep_best({"weight": torch.zeros(9)})
        writer.write({"weight": torch.zeros(9)}, Position(step=step + 1))
        writer.finish()
        torch.distributed.barrier()  # as training waits for the one before
    counter.parts["checkpoint, FSDP"]["calls"] = SHARDED


def exchange_everything(store: Any, cluster: Any) -> None:
    """The control: every rank reads a value of each rank."""
    store.set(f"control/{cluster.rank}", 0)
    for rank in range(cluster.world_size):
        session.wait_for_ranks(store, "control", [rank], cluster)


def meet(write: Callable[[Record], Any], files: int = 256) -> None:
    """The work of a real process that only meets the others, and may open so many files at first.

    The store has a connection of each rank: with 1,024 files, as is usual, 300 ranks in training.
    """
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    began = time.monotonic()
    with session.session() as cluster:
        met = time.monotonic()
    write({"began": began, "met": met, "ended": time.monotonic()})
    done = Path("all-ended")
    if cluster.rank == 0:
        done.touch()
    while not done.exists():  # the end of a process takes more of a processor than the session's
        time.sleep(1)


# Results


def simulate(folder: Path, ranks: int, control: bool = False) -> list[dict[str, Facts]]:
    """The facts of each part, on rank 0 and on the other rank."""
    records = run_ranks(functools.partial(train, ranks=ranks, control=control), folder, 2)
    for record in records:
        del record["log"]
    return records


def faults(found: dict[int, list[dict[str, Facts]]]) -> list[str]:
    """The counts that grow too fast."""
    least, most = min(found), max(found)
    logarithm = math.log2(most) / math.log2(least)
    allowed = {"rank 0": most / least, "another rank": logarithm}
    return [
        f"{rank}, {part}: {name}"
        for number, rank in enumerate(allowed)
        for part, facts in found[least][number].items()
        for name in COUNTS
        if found[most][number][part][name] > 1.1 * allowed[rank] * facts[name]
    ]


def show(found: dict[int, list[dict[str, Facts]]]) -> None:
    for number, rank in enumerate(("rank 0", "another rank")):
        for part in found[min(found)][number]:
            for ranks, records in found.items():
                facts = records[number][part]
                print(
                    f"{rank:12} {part:16} {ranks:5} ranks: {facts['messages']:9,.1f} messages, "
                    f"{facts['bytes']:9,.0f} bytes; {facts['sums']:4,.1f} sums, "
                    f"{facts['summed']:9,.0f} bytes; {facts['seconds']:7.4f} s of a processor, "
                    f"{facts['memory'] / 2**20:5.1f} MiB",
                    flush=True,
                )


def draw(found: dict[int, list[dict[str, Facts]]], path: Path) -> None:
    """Bytes of each part against the ranks."""
    import matplotlib

    matplotlib.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    ranks = sorted(found)
    for number, (axis, title) in enumerate(zip(axes, ("rank 0", "another rank"), strict=True)):
        for part in (*PARTS, "checkpoint, FSDP"):
            sizes = [
                found[n][number][part]["bytes"] + found[n][number][part]["summed"] for n in ranks
            ]
            if any(sizes):
                axis.plot(ranks, sizes, marker="o", markersize=3, label=part)
        axis.plot(ranks, [1000 * n for n in ranks], color="gray", linestyle=":", label="~ ranks")
        axis.set(title=title, xlabel="ranks", xscale="log", yscale="log", xticks=ranks)
        axis.set_xticklabels([f"{n:,}" for n in ranks])
        axis.minorticks_off()
    axes[0].set_ylabel("bytes sent and received")
    axes[1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--processes", type=int, default=300, help="that meet in one session")
    parser.add_argument("--chart", type=Path, help="draw the bytes")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.ranks, arguments.processes = RANKS[:2], 8
    os.environ["DIST_MEET_SECONDS"] = "300"
    with common.folder() as folder:
        found = {ranks: simulate(folder / str(ranks), ranks) for ranks in arguments.ranks}
        show(found)
        together = run_ranks(meet, folder / "together", arguments.processes)
    last = max(each["began"] for each in together)
    met = max(each["met"] for each in together) - last
    ended = max(each["ended"] for each in together) - max(each["met"] for each in together)
    print(
        f"{arguments.processes} processes met {met:.2f} s after the last had come, and ended "
        f"{ended:.2f} s later"
    )
    if arguments.chart:
        draw(found, arguments.chart)
    common.write(arguments.json, {"traffic": found, "met": met, "ended": ended})
    for fault in faults(found):
        print(f"error: grows too fast: {fault}", file=sys.stderr)
    return int(bool(faults(found)))


if __name__ == "__main__":
    sys.exit(main())
