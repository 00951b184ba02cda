"""Every rank trains on its own part: Lightning divides ordinary loaders; repetition is refused."""

import math
from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning.trainer.connectors.data_connector import _DataConnector
from pytorch_lightning.trainer.states import RunningStage
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from smlightning.cluster import collectives, session
from smlightning.data import batches, division
from smlightning.data.batches import digest
from smlightning.errors import UserError


class Numberless:
    """Batches in a loader that has no length."""

    def __iter__(self) -> Any:
        yield from (A, B)


@pytest.mark.parametrize("loader, equally", [(DataLoader([1, 2]), True), (Numberless(), False)])  # type: ignore[arg-type]
def test_equally_many_batches_are_promised_by_a_length(
    loader: Any, equally: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(session, "current_cluster", lambda: SimpleNamespace(world_size=2, rank=0))
    monkeypatch.setattr(
        collectives, "all_sum", lambda slots: slots + slots.flip(0)
    )  # the other rank's are the same
    assert division.equally_many([DataLoader([1]), loader]) is equally  # type: ignore[arg-type]


@dataclass
class Batch:
    x: Any
    name: str = ""


def test_lightning_leaves_the_projects_own_loaders_alone_and_divides_others() -> None:
    two = SimpleNamespace(global_rank=1, world_size=2, accumulate_grad_batches=1)
    connector = _DataConnector(
        SimpleNamespace(  # type: ignore[arg-type]
            _accelerator_connector=SimpleNamespace(
                use_distributed_sampler=True, is_distributed=True
            ),
            distributed_sampler_kwargs={"num_replicas": 2, "rank": 1},
            overfit_batches=0,
            state=SimpleNamespace(fn="fit"),
        )
    )
    lengths = range(1, 41)
    for seed, stage in (
        (3, RunningStage.TRAINING),
        (None, RunningStage.VALIDATING),
        (None, RunningStage.TESTING),
    ):
        own = batches.loader(lengths, lengths, 4, two, seed)  # type: ignore[arg-type]
        assert connector._prepare_dataloader(own, shuffle=seed is not None, mode=stage) is own
    ordinary = DataLoader(lengths, 4, shuffle=True)  # type: ignore[arg-type]
    made: Any = connector._prepare_dataloader(ordinary, shuffle=True, mode=RunningStage.TRAINING)
    assert isinstance(made.sampler, DistributedSampler) and len(made.sampler) == 20


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


def see(monkeypatch: pytest.MonkeyPatch, *loaders: list[Any], workers: int = 0) -> int:
    """Hand each rank its batches, seen from rank 0; returns how often the ranks were summed."""
    sums, at = 0, 0
    trainer: Any = SimpleNamespace(world_size=len(loaders), global_rank=0, is_last_batch=False)
    trainer.train_dataloader, trainer.num_training_batches = (
        DataLoader(Stream(), num_workers=workers),
        math.inf,
    )

    def all_sum(slots: torch.Tensor) -> torch.Tensor:
        nonlocal sums
        sums += 1
        for rank, mine in list(enumerate(loaders))[1:]:
            slots[rank] += digest(mine[at])
            slots[-1] += len(mine) == at + 1
        return slots

    monkeypatch.setattr(collectives, "all_sum", all_sum)
    check = division.DataDividedCheck()
    with monkeypatch.context() as lengths:
        lengths.setattr(collectives, "all_sum", lambda counts: counts)  # of streams: not known
        check.on_train_start(trainer, None)  # type: ignore[arg-type]
    for at, batch in enumerate(loaders[0]):
        trainer.is_last_batch = at + 1 == len(loaders[0])
        check.on_train_batch_start(trainer, None, batch, at)
    return sums


A, B, C, D, E, F = ({"x": torch.tensor([[i, 1.0]])} for i in range(6))


@pytest.mark.parametrize(
    "loaders, sums",
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
def test_what_is_divided_or_proves_nothing_is_not_refused(
    loaders: list[list[Any]], sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert see(monkeypatch, *loaders) == sums, "after the first batches no rank waits for another"


def refusal(monkeypatch: pytest.MonkeyPatch, *loaders: list[Any], workers: int = 0) -> UserError:
    with pytest.raises(UserError) as refused:
        see(monkeypatch, *loaders, workers=workers)
    assert refused.value.cure
    return refused.value


def test_ranks_with_the_same_batches_are_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, [A, B, C], [D, E, F], [A, B, F])
    assert "Ranks 0, 2 of 3" in error.problem
    assert "ordinary DataLoader" in error.cure and "GlobalBatches" in error.cure
    error = refusal(monkeypatch, *[[A, B]] * 12)
    assert "Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more of 12" in error.problem


def test_workers_that_repeat_a_stream_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, [A, A, B, B], [C, C, D, D], workers=2)
    assert "2 workers" in error.problem and "get_worker_info" in error.cure
    error = refusal(monkeypatch, [A, A, A, B, B, B], workers=3)
    assert "3 workers" in error.problem
    assert see(monkeypatch, [A, B, C], workers=2) == 2
    assert see(monkeypatch, [A, A, B], workers=1) == 0
    one_block = [A, A, B, A, B, B]  # it may be chance
    assert see(monkeypatch, one_block, workers=2) == 4
    other_rank = [C, D, E, F]
    assert see(monkeypatch, [A, A, B, B], other_rank, workers=2) == 3
    error = refusal(monkeypatch, [A, A, B], [A, A, B], workers=1)
    assert "Ranks 0, 1 of 2" in error.problem


def test_ranks_with_different_numbers_of_batches_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "all_sum", lambda counts: counts + torch.tensor([0, 11]))
    trainer: Any = SimpleNamespace(world_size=2, global_rank=0, num_training_batches=10)
    with pytest.raises(UserError) as refused:
        division.refuse_different_lengths(trainer)
    assert "10 batches on rank 0" in refused.value.problem
    assert "11 on rank 1" in refused.value.problem
    trainer.num_training_batches = math.inf
    division.refuse_different_lengths(trainer)
    trainer.num_training_batches = 11
    division.refuse_different_lengths(trainer)


def test_a_digest_is_of_all_that_a_batch_holds() -> None:
    x = torch.arange(6, dtype=torch.float32)
    different = [
        x,
        x + 1,
        x.double(),
        x.reshape(2, 3),
        x.bfloat16(),
        x > 2,
        x[:0],
        [x, x],
        {"x": x, "y": 1},
        (x, "text"),
        Batch(x, "name"),
        Batch([x]),
        UserDict(x=(x, True)),
        [["one", "other"]],
        torch.eye(3).to_sparse(),
        None,
    ]
    found = [digest(batch) for batch in different]
    assert len(set(found)) == len(found) and all(0 <= number < 2**48 for number in found)
    assert digest(Batch([x], "name")) == digest(Batch((x.clone(),), "name"))
    assert digest(x.reshape(2, 3).T) == digest(x.reshape(2, 3).T.contiguous())
    itself: dict[str, Any] = {"x": x}
    itself["itself"] = itself
    digest(itself)
