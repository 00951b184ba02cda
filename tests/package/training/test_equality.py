"""What differs between ranks is found before training, or when its first epoch ends."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rank_training import MISTAKES, make_mistake, ranks
from smlightning.cluster import collectives
from smlightning.data.sharing import KEPT, RowSketch, refuse_shared_rows
from smlightning.errors import UserError
from smlightning.launch.estimate.counting import Storages
from smlightning.tensors import checksum
from smlightning.training import equality

WORDS = {
    "labels": "OtherLabels.labels",
    "fingerprint": "fingerprint",
    "what save writes": "Saving.names",
    "sliced data": "first ones",
    "undivided stream": "Ranks 0, 1 of 2",
    "sliced validation": "validation data has other samples as first ones",
    "validation": "4 batches on rank 0 and 3 on rank 1",
    "unfrozen": "late",
    "weights": "After an epoch weight",
    "buffers": "After an epoch seen",
    "unused": "every parameter",
    "shared rows": "more than one rank",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_of_two_ranks(name: str, tmp_path: Path) -> None:
    """On both, in one sentence with a cure; sound trainings end as ever."""
    records = ranks(make_mistake, tmp_path, 2, name=name)
    expected = WORDS.get(name, "")
    for record in records:
        assert expected in record["problem"] and bool(record["problem"]) is bool(expected), record
        assert bool(record["cure"]) is bool(expected)
    said = [re.findall("^warning: (.*?): each rank", record["log"], re.M) for record in records]
    assert sorted(", ".join(said[0]).split(", ")) == (
        ["train/own", "val/own"] if name == "none" else [""]
    ), "once"
    assert not said[1], "by rank 0 alone"


@pytest.fixture
def other_rank(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What rank 1 gives when this process, rank 0, is asked: filled by a test."""
    numbers: list[list[int]] = []
    monkeypatch.setattr(collectives, "from_each_rank", lambda mine: [list(mine), numbers.pop(0)])
    return numbers


@pytest.mark.parametrize(
    ("mine", "others", "refused"),
    [([5, 9], [5, 9], False), ([5, 9], [5, 8], True), ([5, 9], [5, 0], False)],
)
def test_first_samples_that_are_known_are_compared(
    mine: list[int], others: list[int], refused: bool, other_rank: list[list[int]]
) -> None:
    other_rank.append(others)
    if refused:
        with pytest.raises(UserError):
            equality._refuse_sliced_data("training", "samples", mine)
    else:
        equality._refuse_sliced_data("training", "samples", mine)


def sketch(rows: Any) -> RowSketch:
    made = RowSketch()
    for at in range(0, len(rows), 64):
        made.add(rows[at : at + 64])
    return made


@pytest.mark.parametrize(
    ("mine", "others", "refused"),
    [
        (range(0, 4000, 2), range(1, 4000, 2), False),
        (range(0, 4000), range(3000, 7000), True),
        (range(0, 100), range(100, 200), False),
        (range(0, 100), range(90, 200), True),
        (range(0, 100), range(99, 200), False),  # one row evens the ranks out
        ([*range(100), 5], range(200), False),  # with replacement
        (range(0, 4000), range(3990, 8000), False),  # too few to be told from padding
    ],
)
def test_rows_of_two_ranks_are_told_apart(
    mine: Any, others: Any, refused: bool, other_rank: list[list[int]]
) -> None:
    other_rank.append(sketch(np.array(others)).numbers())
    if refused:
        with pytest.raises(UserError):
            refuse_shared_rows(sketch(np.array(mine)))
    else:
        refuse_shared_rows(sketch(np.array(mine)))


def test_a_sketch_keeps_few_rows_and_leaves_out_what_is_none() -> None:
    made = sketch(np.random.default_rng(0).permutation(100_000))
    assert len(made.hashes) == KEPT and not made.repeated
    assert made.numbers() == sketch(np.arange(100_000)).numbers()
    made.add(["a", "b"])
    made.add([[1], [2, 3]])
    assert len(made.numbers()) == len(RowSketch().numbers()) == KEPT + 1


def test_only_what_is_public_plain_and_written_is_compared(other_rank: list[list[int]]) -> None:
    data = SimpleNamespace(labels=("a",), files=["0"], path=Path(), _labels=["c"], net=torch.eye(2))
    names = ["_labels", "labels", "net", "path"]
    other = SimpleNamespace(**{**vars(data), "files": ["1"], "_labels": ["d"], "path": Path("b")})
    seen: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "from_each_rank", lambda mine: seen.append(mine) or [mine])
        equality._refuse_other_attributes(other, names)
    other_rank.append(seen[0])
    equality._refuse_other_attributes(data, names)
    other_rank.append([number + 1 for number in seen[0]])
    with pytest.raises(UserError):
        equality._refuse_other_attributes(data, names)


def test_checksums_tell_values_and_not_how_they_lie() -> None:
    x = torch.rand(3, 4)
    assert checksum(x) == checksum(x.clone()) == checksum(x.T)
    for other in (x + 1, x.double(), x.bfloat16(), x[:2], torch.complex(x, x), x > 0.5):
        assert checksum(other) != checksum(x)
    assert checksum(torch.tensor(2.5)) != checksum(torch.tensor(2.25))
    large = torch.arange(2**24, dtype=torch.int32)  # in pieces, whose copies in int64 are freed
    with Storages([large]) as storages:
        assert checksum(large) == 2**23 * (2**24 - 1)
    assert storages.peak < large.nbytes
    assert checksum(torch.empty(0)) == checksum(torch.eye(2).to_sparse()) == 0
