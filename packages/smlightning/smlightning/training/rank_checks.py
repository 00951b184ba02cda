"""Checks that ranks agree where they must, and that each trains on its own part of the data.

Ranks that differ train without an error: a label's number has another meaning on each rank, the
weights drift apart, or a metric covers one rank's samples. Each check compares a few numbers with
rank 0's, by the one reduction that every backend has (cluster/collectives.py), and gathers those of
every rank only if they differ.
"""

import contextlib
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning.utilities.combined_loader import CombinedLoader
from pytorch_lightning.utilities.seed import isolate_rng
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

from smlightning.cluster import collectives, ending, exchange, session
from smlightning.cluster.location import ClusterError
from smlightning.cluster.sharding import ShardedStrategy
from smlightning.data import rng
from smlightning.data.batches import GlobalBatches, RankBatch
from smlightning.data.exact import ExactBatches, Fetch, RowLoader, divider_of, length_of
from smlightning.errors import UserError, is_users_file
from smlightning.options import declared_options, values_of
from smlightning.tensors import checksums, digest
from smlightning.training import loop
from smlightning.training.metrics import check_states, check_sums

SHOWN = 30  # characters of a value in an error, next to its digest
READINGS = 8  # of the rows that are compared
END_SECONDS = 30.0  # for the other ranks' last batch of an epoch, after this rank's
LISTED = 8  # ranks or metrics in an error
MOST = 32  # batches that DividedData compares
TOLERANCE = 1e-3  # of a metric: ranks may add up in another order
SUM_IT = (
    "sum it over the ranks: log a torchmetrics metric, or self.log(..., sync_dist=True) where the "
    "batches are equally large; a library's model gets a log method in a class of yours that does "
    "so (docs/model.md)"
)
GIVE_ALL = (
    "give every rank all of the data: the ranks divide an ordinary DataLoader, and "
    "smlightning.data.batches.loader gives each rank equally many batches"
)

SORT = (
    "give every host the same files; sort values that come from a set, whose order differs between "
    "processes; or write the value in prepare_data and read it in setup"
)
EQUAL_STREAMS = (
    "let each rank's stream give equally many batches, or end all after the same batch with the "
    "Trainer's limit_train_batches"
)
ONE_ORDER = (
    "give the sampler of every rank the same rows and the same seed: the ranks divide its order"
)
SAME_OPTIONS = "start every rank with the same options"
SAME_FILES = "give every host the same src folder"
# Options that a resumed run may change, and ranks may not have different values of.
EQUAL_OPTIONS = (
    "batch_size", "accumulate_grad_batches", "strategy", "shard_size", "checkpoint_steps",
    "log_every",
)  # fmt: skip


class EqualRanks(pl.Callback):
    """Compares the ranks' data and model before training; the order of rows that they divide; after
    each epoch their weights, buffers and optimizers; and the number of batches of an epoch that has
    no length.
    """

    def __init__(self) -> None:
        self.is_stream = self.has_order = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Called right after the data's own ``setup``."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage == "fit" and trainer.world_size > 1 and data is not None:
            check_attributes(data, ("fingerprint", *saved_attributes(pl_module)))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            check_attributes(pl_module, saved_attributes(pl_module))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size == 1:
            return
        check_data("training", trainer.train_dataloader, [trainer.num_training_batches])
        check_data("validation", trainer.val_dataloaders, trainer.num_val_batches)
        self.is_stream = not equally_many(trainer.train_dataloader)
        self.has_order = True

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """The samplers have begun."""
        if self.has_order:
            self.has_order = False
            check_order(trainer.train_dataloader)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            check_data("test", trainer.test_dataloaders, trainer.num_test_batches)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self.is_stream and trainer.is_last_batch:
            check_end(trainer.current_epoch, batch_idx + 1)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_weights(trainer, pl_module)


class DividedData(pl.Callback):
    """Compares the ranks' first two batches of a fit, before the second is trained on.

    If the batches of a rank are equal to each other, it compares more, at most MOST. Uniform data
    prove nothing, nor does an epoch of one batch: a sampler may have to give one sample to two
    ranks.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.batches: list[list[int]] = []  # for each batch, the ranks' digests: on rank 0
        if trainer.world_size == 1:
            loop.leave(trainer, self)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        # A sum fails at once if a rank was killed; the store would wait for it.
        ended = collectives.any_rank(bool(trainer.is_last_batch))
        batches = exchange.to_rank_0("batches", digest(batch))
        same, done = exchange.from_rank_0("compared batches", lambda: self._compare(batches, ended))
        if same:
            raise UserError(
                f"Ranks {same} of {trainer.world_size} have the same batches and would train on "
                "the same data",
                "return an ordinary DataLoader from train_dataloader, which the ranks divide; give "
                "your own sampler or stream each rank's part by dist.get_global_rank(); seed your "
                "own random generator with the rank",
            )
        if done:
            loop.leave(trainer, self)

    def _compare(self, batches: list[int], ended: bool) -> tuple[str, bool]:
        """The ranks that have the same batches, which differ from each other, and whether the
        comparison is complete.

        Args:
            batches: the ranks' digests.
            ended: on a rank this is the epoch's last batch, so that it compares no more.
        """
        self.batches.append(batches)
        ranks = list(zip(*self.batches, strict=True))
        varied = [digests for digests in ranks if len(set(digests)) > 1]
        for digests, times in Counter(varied).items():
            if times > 1:
                return listed([rank for rank, other in enumerate(ranks) if other == digests]), True
        return "", ended or len(varied) == len(ranks) or len(self.batches) == MOST


class DividedStream(pl.Callback):
    """Rejects a stream that each worker of its loader reads whole: training would see it as many
    times as there are workers.

    The first batches then come in groups, one batch from each worker, that are equal.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.workers = stream_workers(trainer.train_dataloader)
        self.digests: list[int] = []
        if self.workers < 2:
            loop.leave(trainer, self)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.digests.append(digest(batch))
        first, second = set(self.digests[: self.workers]), set(self.digests[self.workers :])
        if len(self.digests) < 2 * self.workers:
            return
        loop.leave(trainer, self)
        if first != second and len(first) == len(second) == 1:
            raise UserError(
                f"Each of the train loader's {self.workers} workers gives the same batches, so "
                f"training sees each {self.workers} times",
                "let the IterableDataset give each worker a part of the data "
                "(torch.utils.data.get_worker_info), or set num_workers to 1",
            )


class SharedMetrics(pl.Callback):
    """Warns once after the first validation, epoch and test of metrics that differ between ranks,
    and after Lightning's sanity check if there are some.

    A torchmetrics object has one value for all ranks, or for a step each rank's own, as it is
    meant. Before training the check rejects metrics that would be summed wrongly.
    """

    def __init__(self) -> None:
        self.stages: set[str] = set()  # compared so far, the same on every rank
        self.names: set[str] = set()  # metrics compared so far

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_sums(pl_module)
        check_states(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "sanity check" if trainer.sanity_checking else "validation")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "epoch")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._compare(trainer, "test")

    def _compare(self, trainer: pl.Trainer, stage: str) -> None:
        if trainer.world_size == 1 or stage in self.stages:
            return
        self.stages.add(stage)
        names = [
            name
            for name in sorted(set(trainer.callback_metrics) - self.names)
            if loop.logged_metric(trainer, re.sub("_(step|epoch)$", "", name)) is None
        ]
        values = [float(trainer.callback_metrics[name]) for name in names]
        difference = metric_difference(names, values)
        if difference or stage != "sanity check":  # one batch may be equal by chance
            self.names.update(names)
        if difference and trainer.is_global_zero:
            print(f"warning: {difference}", file=sys.stderr)


# Every function below that gathers from the ranks is collective.


def stream_workers(loaders: Any) -> int:
    """The most workers of any loader of an IterableDataset; 0 without such a loader."""
    return max(
        (
            getattr(loader, "num_workers", 0)
            for loader in CombinedLoader(loaders, "sequential").flattened
            if isinstance(getattr(loader, "dataset", None), IterableDataset)
        ),
        default=0,
    )


def saved_attributes(model: Any) -> tuple[str, ...]:
    """Attributes of the model or of its data module that `Model.save` writes."""
    return tuple(getattr(model, "saved_attributes", ("labels", "classes")))


def check_start(options: Any) -> None:
    """Raise a ClusterError if the options, or the project's files, differ between ranks."""
    if session.current_cluster().world_size == 1:
        return
    declared = declared_options(type(options))
    named = {
        f"--{name}": value
        for name, value in values_of(options).items()
        if declared[name].resume != "free" or name in EQUAL_OPTIONS
    }
    values = {SAME_OPTIONS: named, SAME_FILES: user_files()}
    exchange.check_equal("options and files", values)


def user_files() -> dict[str, str]:
    """Digests of the imported files of the project, by name."""
    digests = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".py") and is_users_file(file) and Path(file).is_file():
            content = hashlib.sha256(Path(file).read_bytes())
            label = Path(file).name if name == "__main__" else f"{name.replace('.', '/')}.py"
            digests[label] = f"of SHA-256 {content.hexdigest()[:8]}"
    return digests


def check_attributes(owner: Any, names: Sequence[str]) -> None:
    """Raise a ClusterError if an attribute of plain values or tensors differs between ranks."""
    values = {f"{type(owner).__name__}.{name}": vars(owner).get(name) for name in names}
    described = {name: _described(value) for name, value in values.items()}
    _check_equal({SORT: described})


def _described(value: Any) -> str:
    """A text of the value, with a digest if it is long or not plain."""
    with contextlib.suppress(TypeError, ValueError):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}… (digest {digest(text):x})"
    return f"a {type(value).__name__} with the digest {digest(value):x}"


def check_data(split: str, loaders: Any, batches: Sequence[int | float]) -> None:
    """Raise a ClusterError if numbers of batches, or the data that are divided, differ."""
    counts, rows = {}, {}
    combined = CombinedLoader([] if loaders is None else loaders, "sequential")
    for number, loader in enumerate(combined.flattened):
        rows.update(rows_of(f"{split} loader {number}", loader))
    for number, count in enumerate(batches):
        counts[f"the number of {split} batches of loader {number}"] = count
    _check_equal({GIVE_ALL: counts, SORT: rows})


def _check_equal(values: exchange.Values) -> None:
    # A sum fails at once if a rank was killed; the store would wait for it.
    collectives.any_rank(False)
    exchange.check_equal("data", values)


def check_order(loaders: Any) -> None:
    """Raise a ClusterError if ranks divide other orders, in which some rows come twice."""
    orders = {}
    for number, loader in enumerate(CombinedLoader(loaders, "sequential").flattened):
        batches = getattr(loader, "batches", None)
        divider = divider_of(loader) if isinstance(batches, ExactBatches) else None
        content: Any = None  # of a loader that each rank divides as it likes
        if divider:
            content = divider.seed, divider.shuffle
        elif isinstance(batches, ExactBatches) and loader.divides:
            content = batches.checksums.get(1)  # of all ranks' rows
        if content is not None:
            orders[f"the digest of the order of training loader {number}'s rows"] = str(content)
    _check_equal({ONE_ORDER: orders})


def rows_of(name: str, loader: Any) -> dict[str, Any]:
    """The length of a loader's data, and a digest of its first and last rows.

    It needs data that the ranks divide: others may be each rank's own. Rows are read as the loader
    reads them: in a worker, if it has workers. They are read several times, since rows with random
    numbers of each rank's own differ.
    """
    if not isinstance(loader, RowLoader) or not loader.divides:
        return {}
    batches = loader.batches
    is_global = isinstance(batches, GlobalBatches)
    count = len(batches.lengths) if is_global else length_of(loader.dataset)
    found: dict[str, Any] = {f"the length of {name}'s data": count}
    if count and (is_global or batches.rows):
        rows, moment = [0, count - 1], rng.Moment()
        request: Any = Fetch(moment, rows)
        if is_global:
            request = RankBatch(np.array(rows), len(rows), 1.0, moment)
        # A row that cannot be read may be one that the sampler leaves out.
        with isolate_rng(), contextlib.suppress(Exception):
            digests = {digest(batch) for batch in loader.read(READINGS * [request])}
            if len(digests) == 1:
                found[f"the digest of {name}'s first and last rows"] = f"{digests.pop():x}"
    return found


def check_end(epoch: int, batches: int) -> None:
    """Wait until every rank has trained on its last batch of the epoch.

    Raises:
        ClusterError: a rank has more batches, or had another number of them.
    """
    name = f"the number of training batches in epoch {epoch}"
    ending.doing(f"after batch {batches}, the last of epoch {epoch}")
    try:
        exchange.check_equal("end of the epoch", {EQUAL_STREAMS: {name: batches}}, END_SECONDS)
    except exchange.LateRanks as error:
        cluster = session.current_cluster()
        raise ClusterError(
            f"{cluster.name(cluster.rank)} has no training batch after batch {batches} of epoch "
            f"{epoch}, and {error.names} has more",
            EQUAL_STREAMS,
        ) from None


def equally_many(loaders: Any) -> bool:
    """Whether all ranks get equally many batches: False for a stream, whose length is unknown."""
    total = 0
    for loader in CombinedLoader(loaders, "sequential").flattened:
        size = sized_len(loader)
        stream = isinstance(getattr(loader, "dataset", None), IterableDataset)
        total = -1 if size is None or stream or total < 0 else total + size
    return not collectives.differ([total]) and total >= 0


def check_weights(trainer: pl.Trainer, model: torch.nn.Module) -> None:
    """Raise a ClusterError if parameters, buffers or the optimizers' options differ between ranks.

    Shards are compared with those of the other replicas. DDP gives every rank rank 0's buffers, at
    the beginning of the next step, unless its ``broadcast_buffers`` is false.
    """
    strategy: Any = trainer.strategy
    ddp = strategy.model
    is_sharded = isinstance(strategy, ShardedStrategy)
    if not is_sharded and not isinstance(ddp, DistributedDataParallel):
        return
    tensors: dict[str, Any] = dict(model.named_parameters())
    if is_sharded or not ddp.broadcast_buffers:
        tensors.update(model.named_buffers())
    shards = {name: tensor for name, tensor in tensors.items() if hasattr(tensor, "to_local")}
    whole = {name: tensor for name, tensor in tensors.items() if name not in shards}
    numbers = _numbers(whole)
    for number, optimizer in enumerate(trainer.optimizers):
        groups = [{**group, "params": ()} for group in optimizer.param_groups]
        numbers[f"an option of optimizer {number}, such as lr,"] = digest(groups)
    _compare_numbers(numbers)
    if is_sharded and strategy.shard_size < trainer.world_size:
        local = {name: tensor.to_local() for name, tensor in shards.items()}
        _compare_numbers(_numbers(local), strategy.shard_size)


def _numbers(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    named = zip(tensors.items(), checksums(tensors.values()), strict=True)
    return {name: 2 * total + tensor.requires_grad for (name, tensor), total in named}


def _compare_numbers(numbers: Mapping[str, int], shards: int = 1) -> None:
    difference = first_difference(list(numbers.values()), shards)
    if difference is not None:
        (rank, number), cluster = difference, session.current_cluster()
        raise ClusterError(
            f"{list(numbers)[number]} differs between {cluster.name(rank % shards)} and "
            f"{cluster.name(rank)} after an epoch",
            "change weights only in the optimizer, or in the same way on every rank, and set "
            "requires_grad and learning rates equally on all ranks",
        )


def metric_difference(names: list[str], values: list[float]) -> UserError | None:
    """The warning about metrics that differ between ranks."""
    logged = first_difference([digest(names)])
    if logged is not None:
        return UserError(
            f"Rank {logged[0]} logs other metrics than rank 0, which logs "
            f"{', '.join(names) or 'none'}",
            "log the same metrics on every rank: only rank 0's are printed and saved",
        )
    mine = torch.tensor(values, dtype=torch.float64)
    if not collectives.any_rank(not _near(mine, collectives.of_rank_0(mine)).all()):
        return None
    ranks = collectives.from_each_rank(mine)
    equal = _near(ranks, ranks[0])
    differing = [number for number, same in enumerate(equal.all(0).tolist()) if not same]
    if not differing:
        return None
    first = differing[0]
    other = equal[:, first].tolist().index(False)
    return UserError(
        f"{listed([names[number] for number in differing])}: each rank has its own value "
        f"({names[first]} is {ranks[0, first]:.6g} on rank 0 and {ranks[other, first]:.6g} on rank "
        f"{other}), and only rank 0's is printed and saved",
        SUM_IT,
    )


def _near(values: torch.Tensor, rank_0s: torch.Tensor) -> torch.Tensor:
    return torch.isclose(values, rank_0s, rtol=TOLERANCE, equal_nan=True)


def first_difference(numbers: Sequence[int], shards: int = 1) -> tuple[int, int] | None:
    """The first rank that differs from rank 0, and the position of the number that differs.

    Args:
        shards: rank r is compared with rank r % shards, which holds the same shard.
    """
    if not numbers or not collectives.differ(numbers, shards):
        return None
    ranks = collectives.from_each_rank(torch.tensor(numbers))
    expected = ranks[:shards].repeat(len(ranks) // shards, 1)
    rank, position = (ranks != expected).nonzero()[0].tolist()
    return rank, position


def listed(names: Sequence[Any]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:LISTED]))
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"
