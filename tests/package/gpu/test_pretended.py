"""The pretended GPU notices each mistake that it is there for, and nothing where all is right."""

from functools import partial
from pathlib import Path
from typing import Any

import controls
import pytest

from smlightning.testing.processes import run_ranks

MISTAKES = {
    "item": "_local_scalar_dense in 1 of step: controls.py:",
    "truth": "_local_scalar_dense in 1 of step: controls.py:",
    "tolist": "tolist in 1 of step: controls.py:",
    "cpu": "copy to the host in 1 of step: controls.py:",
    "mask": "index by a mask in 1 of step: controls.py:",
    "index of the host": "index by a tensor of the host in 1 of step: controls.py:",
    "nonzero": "nonzero in 1 of step: controls.py:",
    "bincount": "bincount in 1 of step: controls.py:",
    "numbers": "numbers of Python to the GPU in 1 of step: controls.py:",
    "pageable": "copy of memory that is not pinned, or not non_blocking in 1 of step: controls.py:",
    "blocking": "copy of memory that is not pinned, or not non_blocking in 1 of step: controls.py:",
    "sum of two devices": "add mixes devices: controls.py:",
    "product of two devices": "addmm mixes devices: controls.py:",
    "collective of the host": "allreduce_ of a CPU tensor: controls.py:",
    "collective of int16": "broadcast_ of torch.int16: controls.py:",
    "collective of a transpose": "broadcast_ of a tensor that is not contiguous: controls.py:",
    "thread": "Event.synchronize in thread writer, whose GPU is 0",
}
MOST_LAUNCHES = 60


def observed(name: str, folder: Path) -> dict[str, Any]:
    (record,) = run_ranks(partial(controls.observe, name=name), folder, 1)
    return record


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_with_its_place(name: str, tmp_path: Path) -> None:
    record = observed(name, tmp_path)
    (finding,) = record["findings"]
    assert finding.startswith(MISTAKES[name])


@pytest.mark.parametrize("name", ["right", "collectives", "thread that chooses"])
def test_nothing_is_found_where_all_is_right(name: str, tmp_path: Path) -> None:
    record = observed(name, tmp_path)
    assert (record["findings"], record["error"]) == ([], "")


def test_a_tensor_of_the_gpu_is_no_array(tmp_path: Path) -> None:
    assert "numpy" in observed("numpy", tmp_path)["error"]


def test_clipping_and_optimizer_launch_few_kernels_for_bert_large(tmp_path: Path) -> None:
    record = observed("clipping", tmp_path)
    assert (record["findings"], record["error"]) == ([], "")
    assert 0 < sum(count for _, count in record["launches"]) <= MOST_LAUNCHES, record["launches"]


def test_clipping_one_by_one_launches_too_many(tmp_path: Path) -> None:
    launches = observed("clipping one by one", tmp_path)["launches"]
    assert sum(count for _, count in launches) > 3 * 393
