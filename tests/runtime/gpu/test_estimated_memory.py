"""The estimate of a job on GPUs, made where there is none."""

from functools import partial
from pathlib import Path

import estimated_memory
import pytest

from small_job import GOOD, PROJECT
from smlightning_sagemaker.estimate import known
from smlightning_sagemaker.testing.processes import run_ranks

ERROR = 0.25


@pytest.mark.parametrize(
    ("shape", "world_size", "shard_size"),
    [
        ("layers", 16, 8),
        pytest.param("vocabulary", 64, 64, marks=pytest.mark.long),
        pytest.param("vocabulary", 8, 4, marks=pytest.mark.long),
        pytest.param("layers", 8, 8, marks=pytest.mark.long),
    ],
)
def test_fsdp_holds_what_the_estimate_says(
    shape: str, world_size: int, shard_size: int, tmp_path: Path
) -> None:
    body = partial(
        estimated_memory.compare, name=shape, world_size=world_size, shard_size=shard_size
    )
    (record,) = run_ranks(body, tmp_path, 1)
    assert record["estimated"] == pytest.approx(record["counted"], rel=ERROR)


def test_precision_is_the_one_of_the_jobs_gpus() -> None:
    for instance, precision in (("ml.g5.xlarge", "bf16-mixed"), ("ml.m5.xlarge", "32-true")):
        given = {"precision": "auto"}
        job = GOOD.replace(instance_type=instance, instance_count=1, hyperparameters=given)
        options = known.options_of(job, PROJECT)
        assert known.precision(job, options) == precision
        assert known.precision(job, {**options, "precision": "16-mixed"}) == "bf16-mixed"
