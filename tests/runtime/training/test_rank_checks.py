"""Ranks that differ, or train on the same data, end in one sentence within the first epoch."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from rank_training import (
    MISTAKES,
    ROWS,
    SIZE,
    Evaluated,
    Evaluating,
    OddlyEvaluated,
    Reading,
    ReadInSetup,
    Statistics,
    make_mistake,
    ranks,
    start_differently,
    train_a_librarys_model,
    train_here,
    train_own_division,
)
from smlightning.cluster import collectives, exchange
from smlightning.errors import UserError
from smlightning.tensors import checksums, digest
from smlightning.training import rank_checks
from smlightning_sagemaker.testing.processes import run_ranks

LONG = [pytest.param("replica", marks=pytest.mark.long)]
WORDS = {
    "rows": "the digest of training loader 0's first and last rows is ",
    "order": "the digest of the order of training loader 0's rows is ",
    "seed": "the digest of the order of training loader 0's rows is ",
    "uneven streams": "rank 0 on host localhost has no training batch after batch 3 of epoch 0",
    "unused layer": "did not use extra.weight, extra.bias, and DDP",
    "type": "table (torch.int16) cannot be sent between ranks by gloo",
    "learning rate": "an option of optimizer 0, such as lr, differs between rank 0",
    "replica": "net.0.weight differs between rank 1 on host localhost and rank 3",
    "labels": "OtherLabels.labels",
    "undivided stream": "Ranks 0, 1 of 2",
    "validation": "validation batches of loader 0 is 3 on rank 1 on host localhost, and 4",
    "weights": "weight differs between rank 0 on host localhost and rank 1 on host localhost",
}


@pytest.mark.parametrize("name", [*(name for name in MISTAKES if name != "replica"), *LONG])
def test_a_mistake_on_two_ranks_ends_both_in_one_sentence(name: str, tmp_path: Path) -> None:
    records = ranks(make_mistake, tmp_path, 4 if name == "replica" else 2, name=name)
    expected = WORDS.get(name, "")
    for record in records:
        assert expected in record["problem"] and bool(record["problem"]) is bool(expected), record
    warned = [re.findall("^warning: (.*?): each rank", record["log"], re.M) for record in records]
    assert sorted(", ".join(warned[0]).split(", ")) == (
        ["train/own", "val/own"] if name == "none" else [""]
    ), "once"
    assert not warned[1], "only rank 0 warns"


@pytest.mark.parametrize(
    ("model", "warned"),
    [
        ("WithoutSync", ["val_loss", "test_loss"]),
        ("WithSync", []),
        ("LossIsAMetric", ["test/loss"]),
    ],
)
def test_a_librarys_model_trains_however_it_logs(
    model: str, warned: list[str], tmp_path: Path
) -> None:
    """A metric of each rank's own is one warning; a torchmetrics metric is none."""
    one, other = ranks(train_a_librarys_model, tmp_path, 2, name=model)
    assert re.findall("^warning: (.*?): each rank", one["log"], re.M) == warned
    assert "warning" not in other["log"]
    assert one["best"] == other["best"]
    value = one["metrics"]["test/loss" if model == "LossIsAMetric" else "test_loss"]
    assert one["log"].splitlines()[-1].endswith(f" {value:.4f}")
    if model == "WithSync":
        assert one["validated"] == other["validated"] and one["metrics"] == other["metrics"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("option", "--lr is 0.2 on rank 1 on host localhost, and 0.1 on rank 0 on host localhost"),
        ("file", "own.py is of SHA-256"),
        ("", ""),
    ],
)
def test_ranks_that_start_differently_end_before_training(
    what: str, words: str, tmp_path: Path
) -> None:
    """Free options, here hang_seconds, may differ."""
    for record in ranks(start_differently, tmp_path, 2, what=what):
        assert words in record["problem"] and bool(record["problem"]) is bool(words), record


def test_hooks_that_read_a_loader_read_all_rows_on_each_rank(tmp_path: Path) -> None:
    """Libraries compute means from their training loader; only Lightning's are divided."""
    parts = {"model": Reading, "data": ReadInSetup}
    for record in ranks(train_here, tmp_path, 2, kind="shuffled", **parts):
        counts = [int(count) for count in re.findall(r"batches: (\d+)", record["log"])]
        assert counts == 3 * [ROWS // SIZE, 8 // SIZE], counts


def test_rows_that_an_evaluation_repeats_are_named(tmp_path: Path) -> None:
    """Once, for those loaders of a list whose length is known, and not for each epoch."""
    parts = {"model": Evaluating, "data": OddlyEvaluated}
    first, second = ranks(train_here, tmp_path, 2, kind="shuffled", **parts)
    line = "2 ranks get equally many rows of an evaluation's 9, so its metrics count 1 too many"
    assert first["log"].count("equally many") == first["log"].count(line) == 1, first["log"]
    assert "equally many" not in second["log"]


def test_manual_optimization_keeps_the_statistics_of_batchnorm_equal(tmp_path: Path) -> None:
    parts = {"model": Statistics, "data": Evaluated}
    first, second = ranks(train_here, tmp_path, 2, kind="shuffled", **parts)
    assert first["draws"] == second["draws"] != [[[0.0]]]


@pytest.fixture
def other_ranks(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Numbers of ranks 1, 2, … that rank 0, this process, gathers; a test fills the list."""
    others: list[list[float]] = []
    monkeypatch.setattr(exchange, "to_rank_0", lambda name, mine: [mine, *others])
    return others


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


def see(*loaders: list[Any], others: list[Any]) -> int:
    """Give each rank its batches, seen from rank 0; returns how many batches were compared."""
    check = rank_checks.DividedData()
    trainer: Any = SimpleNamespace(
        world_size=len(loaders), global_rank=0, is_last_batch=False, callbacks=[check]
    )
    check.on_train_start(trainer, None)  # type: ignore[arg-type]
    for at, batch in enumerate(loaders[0]):
        if not trainer.callbacks:
            break
        others[:] = [digest(mine[at]) for mine in loaders[1:] if at < len(mine)]
        ended = any(at + 1 == len(mine) for mine in loaders)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collectives, "any_rank", lambda flag, ended=ended: ended)
            check.on_train_batch_start(trainer, None, batch, at)
    return len(check.batches)


A, B, C, D, E, F = ({"x": torch.tensor([[i, 1.0]])} for i in range(6))


@pytest.mark.parametrize(
    ("loaders", "compared"),
    [
        ([[A, B, C], [D, E, F]], 2),
        ([[A, B, C], [A, E, F]], 2),  # one alone may be chance
        ([[A, A, A], [A, A, A]], 3),  # the data is uniform
        ([[A] * 40, [A] * 40], 32),
        ([[A], [A]], 1),  # a sampler repeats the only sample that there is
        ([[A, B, C], [A]], 1),  # rank 1 would not come again
        ([[A, B, C]], 0),
    ],
)
def test_divided_data_and_data_that_prove_nothing_pass(
    loaders: list[list[Any]], compared: int, other_ranks: list[list[float]]
) -> None:
    assert see(*loaders, others=other_ranks) == compared


def test_ranks_with_the_same_batches_are_listed(other_ranks: list[list[float]]) -> None:
    with pytest.raises(UserError, match="Ranks 0, 2 of 3"):
        see([A, B, C], [D, E, F], [A, B, F], others=other_ranks)
    with pytest.raises(UserError, match="Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more of 12"):
        see(*[[A, B]] * 12, others=other_ranks)


@pytest.mark.parametrize(
    ("other", "equal"), [(0.5, True), (0.5001, True), (0.51, False), (math.nan, False)]
)
def test_a_metric_that_differs_on_one_rank_is_described(
    other: float, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.tensor([[0.5], [0.5], [other]], dtype=torch.float64)
    monkeypatch.setattr(collectives, "from_each_rank", lambda _: values)
    monkeypatch.setattr(collectives, "differ", lambda *_: False)  # all log the same metrics
    monkeypatch.setattr(collectives, "any_rank", lambda mine: mine or not equal)  # rank 2 sees it
    difference = rank_checks.metric_difference(["val/x"], [0.5])
    assert (difference is None) is equal
    for part in ("val/x", "0.5 on rank 0", f"{other:g} on rank 2") if difference else ():
        assert part in difference.problem  # type: ignore[union-attr]
        assert "sync_dist=True" in difference.hint  # type: ignore[union-attr]


def checksum(tensor: torch.Tensor) -> int:
    (number,) = checksums([tensor])
    return number


def test_a_checksum_depends_on_values_and_not_on_strides() -> None:
    x = torch.rand(3, 4)
    assert checksum(x) == checksum(x.clone()) == checksum(x.T)
    for other in (x + 1, x.double(), x.bfloat16(), x[:2], torch.complex(x, x), x > 0.5):
        assert checksum(other) != checksum(x)
    assert checksum(torch.tensor(2.5)) != checksum(torch.tensor(2.25))
    large = torch.arange(2**24, dtype=torch.int32)  # in several pieces
    assert checksum(large) == 2**23 * (2**24 - 1)
    assert checksum(torch.empty(0)) == checksum(torch.eye(2).to_sparse()) == 0


def iterate(batches: list[Any], workers: int) -> None:
    """Let the check see a stream's batches."""
    check = rank_checks.DividedStream()
    trainer: Any = SimpleNamespace(
        train_dataloader=DataLoader(Stream(), num_workers=workers), callbacks=[check]
    )
    check.on_train_start(trainer, None)  # type: ignore[arg-type]
    for at, batch in enumerate(batches):
        if trainer.callbacks:
            check.on_train_batch_start(trainer, None, batch, at)


@pytest.mark.parametrize(
    ("batches", "workers"),
    [
        ([A, B, C, D, A, A, B, B], 2),
        ([A, A, B, B], 1),
        ([A, A, A, A], 2),  # the data is uniform
        ([A, A, B, C], 2),
        ([A, A, B], 2),  # the epoch is shorter
    ],
)
def test_workers_that_divide_a_stream_pass(batches: list[Any], workers: int) -> None:
    iterate(batches, workers)


@pytest.mark.parametrize(("batches", "workers"), [([A, A, B, B], 2), ([A, A, A, B, B, B, C], 3)])
def test_workers_that_each_read_a_whole_stream_are_rejected(
    batches: list[Any], workers: int
) -> None:
    with pytest.raises(UserError, match=f"{workers} workers") as error:
        iterate(batches, workers)
    assert "get_worker_info" in error.value.hint


def test_a_sampler_that_gives_each_rank_its_own_rows_is_left_to_its_owner(tmp_path: Path) -> None:
    """With ``use_distributed_sampler=False``, as for samplers that know their rank."""
    one, other = run_ranks(train_own_division, tmp_path, 2)
    rows = [{row for batch in seen["rows"] for row in batch} for seen in (one, other)]
    assert rows == [set(range(0, ROWS, 2)), set(range(1, ROWS, 2))]
