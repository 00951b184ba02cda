"""The requests of many jobs, member by member, against those that the SageMaker SDK's v2 built.

Each file of requests/ holds a job and the request that the estimator of SDK v2.257.7 made of
it, without MetricDefinitions, which come from src/options.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from small_job import GOOD, PROJECT
from smlightning.errors import UserError
from smlightning.reports import log
from smlightning_sagemaker.job import aws, job, request

CASES = sorted((Path(__file__).parent / "requests").glob("*.json"))
NAME = "language-id-20261123-010203"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_request_equals_the_sdks(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    wanted = job.from_table(case["job"], PROJECT)
    body = request.dry_run(wanted, PROJECT, NAME)
    aws.reject(body)
    metrics = body["AlgorithmSpecification"].pop("MetricDefinitions")
    assert metrics == request.metric_definitions(PROJECT)
    assert body == case["request"]


GROUPS = [
    {"InstanceGroupName": "a", "InstanceType": "ml.g5.12xlarge", "InstanceCount": 1},
    {"InstanceGroupName": "b", "InstanceType": "ml.g6.12xlarge", "InstanceCount": 2},
]
PREFERENCES = [
    {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2},
    {"InstanceType": "ml.g5.48xlarge", "InstanceCount": 1},
]
# Without the groups' names the toolkit starts a training of its own in each group (environment.py,
# get_distribution_instance_groups_from_resource_config).
NAMES = {"sagemaker_distribution_instance_groups": '["a", "b"]'}


@pytest.mark.parametrize(
    ("config", "flags"),
    [({"InstanceGroups": GROUPS}, NAMES), ({"InstancePreferences": PREFERENCES}, {})],
)
def test_groups_and_preferences_of_request_are_sent_in_place_of_type_and_count(
    config: dict[str, Any], flags: dict[str, str]
) -> None:
    wanted = GOOD.replace(request={"ResourceConfig": config})
    body = request.dry_run(wanted, PROJECT, NAME)
    assert body["ResourceConfig"] == {**config, "VolumeSizeInGB": 100}
    sent = body["HyperParameters"]
    assert "sagemaker_instance_type" not in sent
    assert sent.items() >= flags.items()
    aws.reject(body)


URI = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:{}-sagemaker"
PY312 = URI.format("2.8.0-gpu-py312-cu129-ubuntu22.04")
MIRROR = "registry.example.com/team/pytorch:2.14-cu133-amzn2023-sagemaker"
OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
EFA = {"FI_PROVIDER": "efa"}


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        # Types that toolkit 5.1.1 of image "current" does not know.
        ({"instance_type": "ml.p5e.48xlarge"}, EFA),
        ({"instance_type": "ml.p5en.48xlarge"}, EFA),
        ({"instance_type": "ml.p6-b200.48xlarge"}, EFA),
        ({"instance_type": "ml.p6-b300.48xlarge"}, EFA),
        ({"instance_type": "ml.p5en.48xlarge", "image": PY312}, EFA),
        ({"instance_type": "ml.p5en.48xlarge", "image": MIRROR}, EFA),
        # Types that it knows, and types without EFA.
        ({"instance_type": "ml.p5.48xlarge"}, {}),
        ({"instance_type": "ml.p4d.24xlarge"}, {}),
        ({"instance_type": "ml.g5.12xlarge"}, {}),
        ({"instance_type": "ml.m5.xlarge"}, {}),
        # Under mpirun the toolkit sets it for every type.
        ({"instance_type": "ml.p5en.48xlarge", "distribution": "pytorchddp"}, {}),
        # The owner's image may do so itself.
        ({"instance_type": "ml.p5en.48xlarge", "image": OWN}, {}),
        # The owner's value wins.
        (
            {"instance_type": "ml.p5en.48xlarge", "environment": {"FI_PROVIDER": "tcp"}},
            {"FI_PROVIDER": "tcp"},
        ),
    ],
)
def test_the_request_sets_efa_where_the_toolkit_of_the_image_does_not(
    changes: dict[str, Any], variables: dict[str, str]
) -> None:
    body = request.dry_run(GOOD.replace(**{"environment": {}, **changes}), PROJECT, NAME)
    assert body.get("Environment", {}) == variables


def test_a_channel_takes_members_by_their_own_names() -> None:
    given = {"s3_data": "s3://bucket/x", "ShuffleConfig": {"Seed": 3}}
    (channel,) = request.dry_run(GOOD.replace(channels={"training": given}), PROJECT)[
        "InputDataConfig"
    ]
    assert channel["ShuffleConfig"] == {"Seed": 3}
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://bucket/x"


def test_metrics_are_read_from_the_lines_that_training_prints() -> None:
    values = {"step": 7, "epoch": 1, "train/loss": 1.5, "val/accuracy": 2e-05, "lr": 0.002}
    values |= {"samples_per_second": 1e6, "data_wait": 0.25, "gpu_gib": 31.5}
    printed = log.format_metrics(values)
    for definition in request.metric_definitions(PROJECT):
        match = re.search(definition["Regex"], printed)
        assert (float(match[1]) if match else None) == values.get(definition["Name"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"RoleArn": 7}, "Invalid type for parameter RoleArn, value: 7"),
        ({"Nonsense": {}}, 'Unknown parameter in input: "Nonsense"'),
        ({"Tags": [{"Key": "a"}]}, 'Missing required parameter in Tags[0]: "Value"'),
    ],
)
def test_a_request_that_botocore_would_not_send_is_an_error_with_its_sentence(
    change: dict[str, Any], sentence: str
) -> None:
    right = request.dry_run(GOOD, PROJECT, NAME)
    aws.reject(right)
    with pytest.raises(UserError) as raised:
        aws.reject({**right, **change})
    assert sentence in raised.value.problem
