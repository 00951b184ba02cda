"""The pretended GPU notices each mistake that it is there for, and nothing where all is right."""

from typing import Any

import controls
import pytest

from smlightning_sagemaker.testing.processes import run_ranks

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


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The simulated GPU's record of each action, all in one process."""
    (record,) = run_ranks(controls.observe, tmp_path_factory.mktemp("controls") / "run", 1)
    return record


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_with_its_place(name: str, observed: dict[str, Any]) -> None:
    (finding,) = observed[name]["findings"]
    assert finding.startswith(MISTAKES[name])


def test_the_packages_collectives_send_what_nccl_takes(observed: dict[str, Any]) -> None:
    assert observed["collectives"] == {"findings": [], "error": ""}
