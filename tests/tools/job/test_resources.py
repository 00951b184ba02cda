"""The hosts that a job requests; all other values are computed from them."""

import json
from typing import Any

import pytest

from small_job import GOOD, PROJECT
from smlightning_sagemaker import preflight
from smlightning_sagemaker.estimate import known
from smlightning_sagemaker.job import images, launchers, price, request, resources
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.job.resources import Group
from smlightning_sagemaker.preflight.account.table import context_of_request

TORCHRUN = {"sagemaker_torch_distributed_enabled": True}


def group(name: str, kind: str, count: int) -> dict[str, Any]:
    return {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": count}


def with_groups(*groups: dict[str, Any], **keys: Any) -> Job:
    """A job on groups, whose instance_type, of other hosts, is unused."""
    return GOOD.replace(request={"ResourceConfig": {"InstanceGroups": list(groups)}}, **keys)


def with_preferences(*preferences: dict[str, Any], **keys: Any) -> Job:
    config = {"InstancePreferences": list(preferences)}
    return GOOD.replace(request={"ResourceConfig": config}, **keys)


ONE = with_groups(group("one", "ml.g5.12xlarge", 3))
TWO = with_groups(
    group("a", "ml.g5.12xlarge", 1), group("b", "ml.g6.12xlarge", 2), distribution="auto"
)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
            [(Group("", "ml.g5.xlarge", 2),)],
        ),
        (
            {"InstanceGroups": [group("a", "ml.g5.xlarge", 2), group("b", "ml.m5.large", 1)]},
            [(Group("a", "ml.g5.xlarge", 2), Group("b", "ml.m5.large", 1))],
        ),
        (
            {
                "InstanceCount": 2,
                "InstancePreferences": [{"InstanceType": "ml.g5.xlarge"}],
            },
            [(Group("", "ml.g5.xlarge", 2),)],
        ),
        (
            {
                "InstancePreferences": [
                    {"InstanceType": "ml.g5.xlarge", "InstanceCount": 4},
                    {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 1},
                ]
            },
            [(Group("", "ml.g5.xlarge", 4),), (Group("", "ml.g5.12xlarge", 1),)],
        ),
        (  # as DescribeTrainingJob answers
            {
                "InstancePreferences": [
                    {"InstanceType": "ml.g5.xlarge", "InstanceCount": 4},
                    {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 1},
                ],
                "SelectedInstanceType": "ml.g5.12xlarge",
                "SelectedInstanceCount": 1,
            },
            [(Group("", "ml.g5.12xlarge", 1),)],
        ),
    ],
)
def test_the_clusters_of_a_resource_config(config: dict[str, Any], expected: Any) -> None:
    assert resources.candidates(config) == expected


@pytest.mark.parametrize(
    "job",
    [
        GOOD,
        ONE,
        TWO,
        with_preferences({"InstanceType": "ml.g5.12xlarge"}, {"InstanceType": "ml.g6.12xlarge"}),
        GOOD.replace(instance_type=["ml.g5.48xlarge", "ml.g5.12xlarge"]),
    ],
)
def test_checks_read_the_hosts_of_the_request(job: Job) -> None:
    sent = request.dry_run(job, PROJECT)["ResourceConfig"]
    clusters = [resources.groups(each) for each in resources.alternatives(job)]
    assert resources.candidates(sent) == clusters or len(clusters) == 1
    assert clusters[0] == resources.candidates(sent)[0]
    several = {"InstanceGroups", "InstancePreferences"} & sent.keys()
    assert not several or "InstanceType" not in sent
    types = [kind for each in resources.alternatives(job) for kind in resources.types(each)]
    assert context_of_request(request.dry_run(job, PROJECT))["sagemaker:InstanceTypes"] == types


def test_launcher_flags_and_image_are_those_of_the_groups() -> None:
    """SMDDP runs on the unused instance_type, and the groups are g5."""
    assert launchers.launcher(ONE) == "torch_distributed"
    assert launchers.flags(ONE) == {**TORCHRUN, "sagemaker_instance_type": "ml.g5.12xlarge"}
    assert images.profile(ONE) == images.CURRENT
    cpu = with_groups(group("one", "ml.m5.xlarge", 2))
    assert images.image_uri(cpu).endswith(images.CURRENT.cpu)
    alone = with_groups(group("one", "ml.g5.xlarge", 1))
    assert launchers.launcher(alone) == "none" and launchers.flags(alone) == {}


def test_flags_contain_all_groups_and_a_type_only_if_all_hosts_have_it() -> None:
    names = {"sagemaker_distribution_instance_groups": ["a", "b"]}
    assert launchers.flags(TWO) == {**TORCHRUN, **names}
    sent = request.dry_run(TWO, PROJECT)["HyperParameters"]
    assert json.loads(sent["sagemaker_distribution_instance_groups"]) == ["a", "b"]
    either = GOOD.replace(
        instance_type=["ml.p5.48xlarge", "ml.p5e.48xlarge"], distribution="torch_distributed"
    )
    assert launchers.flags(either) == TORCHRUN


def test_ranks_and_batch_are_those_of_all_groups() -> None:
    options = known.options_of(TWO, PROJECT)
    run = known.run_of(TWO, options)
    assert run and run.ranks == 12
    batch = options["batch_size"]
    summary = preflight.summary(TWO, PROJECT)
    assert "1 × ml.g5.12xlarge + 2 × ml.g6.12xlarge, torch_distributed" in summary
    assert summary.endswith(f"12 ranks × batch_size {batch} = global batch {12 * batch}")
    accumulating = TWO.replace(hyperparameters={"accumulate_grad_batches": 4})
    line = preflight.summary(accumulating, PROJECT)
    assert line.endswith(f"× accumulate_grad_batches 4 = global batch {48 * batch}")


PRICES = {"ml.g5.12xlarge": 7.0, "ml.g6.12xlarge": 5.0, "ml.p4d.24xlarge": 30.0}


@pytest.mark.parametrize(
    ("job", "hourly"),
    [
        (GOOD, 60),
        (ONE, 21),
        (TWO, 17),
        (
            with_preferences(
                {"InstanceType": "ml.g6.12xlarge"}, {"InstanceType": "ml.g5.12xlarge"}
            ),
            14,
        ),
        (ONE.replace(price_per_hour=1.0), 3),
        (TWO.replace(price_per_hour=1.0), 17),  # one price for two types is none
    ],
)
def test_the_price_is_that_of_every_host(job: Job, hourly: int, monkeypatch: Any) -> None:
    """With several candidates, the most expensive one counts, since `at most` has to hold."""
    monkeypatch.setattr(
        price, "per_hour", lambda region, kinds: {kind: PRICES[kind] for kind in kinds}
    )
    job = job.replace(max_run_s=7200)
    assert f" {hourly}.00 USD an hour, at most {2 * hourly}.00 USD" in price.cost(job)


@pytest.mark.parametrize(("hosts", "counts"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (5, [3, 2])])
def test_a_rehearsal_has_a_host_of_each_group(hosts: int, counts: list[int]) -> None:
    rehearsed = resources.groups(resources.resized(TWO, hosts))
    assert [each.count for each in rehearsed] == counts
    assert [each.name for each in rehearsed] == ["a", "b"][: len(counts)] or hosts == 1


def test_a_rehearsal_of_a_list_is_of_its_first_type() -> None:
    either = with_preferences(
        {"InstanceType": "ml.g6.12xlarge"}, {"InstanceType": "ml.g5.12xlarge"}
    )
    assert resources.groups(resources.resized(either, 3)) == (Group("", "ml.g6.12xlarge", 3),)
