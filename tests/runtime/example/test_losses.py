"""The example's first training losses are the recorded ones: a change of the numbers is seen.

They depend on initial weights, order, dropout, schedule, the reduction over ranks, and on torch's
version: losses.json has those of each version that was recorded. If they change on purpose, record
them with `make losses`, and say why in the commit.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from smlightning_sagemaker.testing import runs

RECORD = Path(__file__).with_name("losses.json")
VERSION = torch.__version__.partition("+")[0]
GLOBAL_BATCH, STEPS = 32, 10
# Not bit for bit: kernels for other instructions of a CPU add up in another order. With those for
# SSE, AVX2 and AVX-512 (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA) these losses differ by 6e-7.
TOLERANCE = 1e-5


def losses(words: str, folder: Path, ranks: int) -> list[float]:
    """The losses of the first global batches, each the mean of its ranks'."""
    sizes = {"batch_size": GLOBAL_BATCH // ranks, "max_steps": STEPS, "epochs": STEPS}
    records = runs.train(folder, {"dataset": words, "lr": 5e-4, **sizes}, ranks)
    steps = zip(*(record["losses"] for record in records), strict=True)
    return [sum(step) / ranks for step in steps]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_losses_are_the_recorded_ones(words: str, tmp_path: Path, ranks: int) -> None:
    found = losses(words, tmp_path / "run", ranks)
    assert len(found) == STEPS
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    if os.environ.get("RECORD_LOSSES"):
        recorded.setdefault(VERSION, {})[f"ranks={ranks}"] = [float(f"{x:.8g}") for x in found]
        RECORD.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if VERSION not in recorded:
        pytest.skip(f"no losses of torch {VERSION} in {RECORD.name}: make losses")
    assert found == pytest.approx(recorded[VERSION][f"ranks={ranks}"], rel=TOLERANCE)
