"""Commands print no stack trace for any value in job.toml: wrong types, odd texts (seeded)."""

import contextlib
import datetime
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from test_corpora import BASE

from small_job import PROJECT, document, set_at
from smlightning.options import declared_options
from smlightning_sagemaker.__main__ import main
from smlightning_sagemaker.job import aws
from smlightning_sagemaker.job.job import FILE_SYSTEM_CHANNEL, KEYS, S3_CHANNEL

TEXTS = (
    "",
    " ",
    "\n",
    "\u0000",
    "\u202e{}%s",
    "ß" * 300,
    "x" * 5000,
    "[*",
    "(((",
    "-",
    "--",
    "..",
    "/",
    "~",
    "C:\\data",
    "training",
    "auto",
    "s3://",
    "s3://b",
    "s3:///key",
    "s3://My_Bucket/a b/",
    "s3://one--use1-az4--x-s3/data",
    "https://s3.amazonaws.com/bucket/key",
    "arn:",
    "arn:aws:iam::1:role/x",
    "arn:aws:lambda:us-east-1:123456789012:function:x",
    "arn:aws-cn:kms:cn-north-1:123456789012:key/x",
    "alias/x",
    "ml.p4d.24xlarge",
    "ml.trn1.2xlarge",
    "ml..",
    "123456789012.dkr.ecr.us-east-1.amazonaws.com/x:y@sha256:z",
    "ssm:",
    "a:b:c:d:e:f:g:h",
    "AKIAABCDEFGHIJKLMNOP",
)
VALUES: tuple[Any, ...] = (
    *TEXTS,
    *(0, 1, -1, 2**31, 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False),
    *([], [[]], [1], ["a"], ["a", 1], ["ml.g5.xlarge", "ml.g5.xlarge"], [{}], [{"a": [{}]}]),
    *({}, {"": ""}, {"a": {"b": {"c": 1}}}, {"min": 1, "max": 0}, {"S3Uri": 5}, {"Name": []}),
    *({"InstanceType": "ml.g5.xlarge"}, {"s3_data": {}}, {"DataSource": "s3://b/c"}),
    *(datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), datetime.time(1)),
)


def members(shape: Any, depth: int = 4) -> list[tuple[str, ...]]:
    """Paths of a structure's members and of what lies below them; lists are passed over."""
    found: list[tuple[str, ...]] = []
    for name, inner in getattr(shape, "members", {}).items():
        found.append((name,))
        inner = inner.member if inner.type_name == "list" else inner
        found += [(name, *rest) for rest in (members(inner, depth - 1) if depth > 1 else [])]
    return found


def places() -> list[tuple[str, ...]]:
    """Paths of all keys that job.toml can have."""
    options = declared_options(PROJECT.options().cls)
    channel = members(aws.shape("Channel"))
    return [
        *(tuple(key.path.split(".")) for key in KEYS),
        *(("request", *path) for path in members(aws.shape("CreateTrainingJobRequest"))),
        *(("channels", "training", key) for key in {**S3_CHANNEL, **FILE_SYSTEM_CHANNEL}),
        *(("channels", "training", *path) for path in channel),
        *(("channels", name) for name in ("training", "", "a b", "Training", "code")),
        *(("hyperparameters", name) for name in (*options, "none_such", "")),
        *(("environment", name) for name in ("NCCL_DEBUG", "CA_REPOSITORY_ARN", "AWS_PROFILE", "")),
        *(("secrets", name) for name in ("WANDB_API_KEY", "1", "RANK")),
        *(("tags", name) for name in ("aws:x", "max_run_s", "")),
        ("none_such",),
    ]


def odd_job(seed: int) -> dict[str, Any]:
    """The project's own job with one to three odd values."""
    chance = random.Random(seed)
    content: dict[str, Any] = json.loads(json.dumps(BASE))
    for _ in range(chance.choice((1, 1, 2, 3))):
        set_at(content, chance.choice(PLACES), chance.choice(VALUES))
    return content


PLACES = places()
COMMANDS = (
    ["preflight", "--offline"],
    ["submit", "--dry-run"],
)


def statuses(seed: int, folder: Path) -> list[int]:
    """The exit status of each command for an odd job."""
    file = folder / "job.toml"
    file.write_text(document(odd_job(seed)), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return [main([*command, "--job", str(file)]) for command in COMMANDS]


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(20, 300, 20))],
)
def test_no_value_of_job_toml_gives_a_stack_trace(first, tmp_path):
    for seed in range(first, first + 20):
        assert set(statuses(seed, tmp_path)) <= {0, 1}, odd_job(seed)
