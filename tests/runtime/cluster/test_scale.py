"""Each rank but rank 0 exchanges equally much with the store, however many ranks there are."""

import functools
import sys
from pathlib import Path

import pytest

from smlightning_sagemaker.testing.processes import run_ranks

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import scale


@pytest.mark.long
def test_only_an_exchange_that_is_quadratic_on_purpose_grows_too_fast(tmp_path: Path) -> None:
    found = {ranks: scale.simulate(tmp_path / str(ranks), ranks, True) for ranks in (8, 64)}
    for number in (0, 1):
        assert {*scale.PARTS, "checkpoint, FSDP", "data", "control"} == {*found[8][number]}
    assert scale.faults(found) == [
        "another rank, control: messages",
        "another rank, control: bytes",
    ]


def test_more_ranks_meet_than_rank_0_may_open_files_at_first(tmp_path: Path) -> None:
    assert len(run_ranks(functools.partial(scale.meet, files=24), tmp_path, 24)) == 24
