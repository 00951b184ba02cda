"""The tests themselves on a workstation with one GPU."""

from functools import partial
from pathlib import Path

import contract_rank
import pytest
import small

from smlightning.testing.processes import run_ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_contract_ranks_train_on_the_cpu_of_a_machine_with_one_gpu(
    ranks: int, tmp_path: Path
) -> None:
    options = small.options(tmp_path)
    body = partial(contract_rank.iterate, options=options)
    for record in run_ranks(body, tmp_path / "run", ranks):
        assert record["device"] == "cpu"
