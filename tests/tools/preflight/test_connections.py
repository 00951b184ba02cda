"""Preflight finds connections that an isolated container or a closed VPC does not allow."""

from collections.abc import Callable
from typing import Any

import pytest

from moto_account import ACCOUNT, REGION, record, simulated
from small_job import PROJECT
from smlightning_sagemaker import preflight
from smlightning_sagemaker.findings import Finding, has_errors
from smlightning_sagemaker.job import request
from smlightning_sagemaker.job.job import Job
from smlightning_sagemaker.preflight import account
from smlightning_sagemaker.preflight.connections import connections

pytest_plugins = "moto_account"
INDEX = {"PIP_INDEX_URL": "https://pip.example.internal/simple"}
SERVER = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:mlflow-tracking-server/team"
APP = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:mlflow-app/app-1"
REPOSITORY = f"arn:aws:codeartifact:{REGION}:{ACCOUNT}:repository/team/python"
HUB = "ssm:hub"
ABROAD = f"arn:aws:secretsmanager:eu-west-1:{ACCOUNT}:secret:hub-AbCdEf"


def findings(job: Job) -> list[Finding]:
    """Findings of the account's checks for a job."""
    body = request.dry_run(job, PROJECT)
    return account.check(job, body, connections=connections(job, body, PROJECT))


def levels(job: Job) -> list[tuple[str, str]]:
    return [(finding.level, finding.key) for finding in findings(job)]


def test_a_closed_vpc_with_endpoints_and_an_index_of_its_own_passes(aws, good, vpc):
    for name in ("team/wandb", "hub"):
        aws.client("secretsmanager").create_secret(Name=name, SecretString="x")
    vpc.gateway("s3")
    vpc.endpoints("secretsmanager")
    offline = {"WANDB_MODE": "offline", "HF_ENDPOINT": "https://hub.example.internal"}
    job = good.replace(
        network=vpc.network,
        environment={**INDEX, **offline},
        secrets={"WANDB_API_KEY": "team/wandb"},
        hub_token_secret="hub",  # noqa: S106
        hyperparameters={**good.hyperparameters, "model_name": "acme/model"},
    )
    assert levels(job) == []


def test_preflight_checks_the_network_for_all_connections_of_the_job(aws, good, vpc):
    vpc.gateway("s3")
    aws.client("secretsmanager").create_secret(Name="team/db", SecretString="x")
    job = good.replace(network=vpc.network, environment=INDEX, secrets={"DB": "team/db"})
    errors = [each for each in preflight.run(job, PROJECT) if each.level == "error"]
    assert [each.key for each in errors] == ["network.subnets"]
    assert errors[0].problem.startswith("secrets.DB needs Secrets Manager")
    vpc.endpoints("secretsmanager")
    assert not has_errors(preflight.run(job, PROJECT))


Change = Callable[[Job], Job]


def environment(**variables: str) -> Change:
    return lambda job: job.replace(environment=variables)


CLOSED: list[tuple[Change, str, tuple[str, ...]]] = [
    # a job; the level of its finding, if it has one; the endpoints with which it has none
    (environment(), "error", ()),
    (environment(PIP_INDEX_URL="https://pypi.org/simple"), "error", ()),
    (environment(PIP_EXTRA_INDEX_URL=INDEX["PIP_INDEX_URL"]), "", ()),
    (environment(HTTPS_PROXY="http://proxy.example.internal:3128"), "", ()),
    (
        environment(CA_REPOSITORY_ARN=REPOSITORY),
        "error",
        ("codeartifact.api", "codeartifact.repositories"),
    ),
    (
        lambda job: job.replace(environment={**INDEX, "MLFLOW_TRACKING_URI": SERVER}),
        "error",
        ("experiments",),
    ),
    (lambda job: job.replace(environment={**INDEX, "MLFLOW_TRACKING_URI": APP}), "error", ()),
    (environment(PIP_INDEX_URL="https://pip.s3.cn-north-1.amazonaws.com.cn/simple"), "error", ()),
    (lambda job: job.replace(environment=INDEX, hub_token_secret=HUB), "error", ("ssm",)),
    (lambda job: job.replace(environment=INDEX, hub_token_secret=ABROAD), "error", ()),
    (
        lambda job: job.replace(environment=INDEX, hyperparameters={"dataset": "acme/words"}),
        "error",
        (),
    ),
    (lambda job: job.replace(environment={**INDEX, "WANDB_API_KEY": "x"}), "warning", ()),
]


def test_a_closed_subnet_reaches_services_with_an_endpoint(good, vpc, monkeypatch):
    record(
        monkeypatch,
        SimulatePrincipalPolicy=simulated(),
    )
    vpc.gateway("s3")
    for change, level, services in CLOSED:
        job = change(good.replace(network=vpc.network))
        found = [finding for finding in findings(job) if finding.key == "network.subnets"]
        assert [finding.level for finding in found] == [level] * bool(level), job
        if services:
            assert all(service in found[0].cure for service in services)
            vpc.endpoints(*services)
            assert "network.subnets" not in [finding.key for finding in findings(job)]


ISOLATED = "request.EnableNetworkIsolation"
OWN_IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/mine:7"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["error"]),  # pip
        ({"request": {}}, []),
        ({"environment": {"PIP_NO_INDEX": "1"}}, []),
        ({"hyperparameters": {"dataset": "stanfordnlp/imdb"}}, ["error", "error"]),
        ({"hyperparameters": {"dataset": "imdb"}}, ["error", "warning"]),  # may be built in
        ({"hyperparameters": {"dataset": "words.csv"}}, ["error"]),
        ({"environment": {"PIP_NO_INDEX": "1", **INDEX, "MLFLOW_TRACKING_URI": SERVER}}, ["error"]),
        ({"environment": {"PIP_NO_INDEX": "1", "MLFLOW_TRACKING_URI": APP}}, ["error"]),
        ({"secrets": {"DB": "team/db", "API": "ssm:api"}}, ["error"] * 3),
        ({"secrets": {"WANDB_API_KEY": "team/wandb"}}, ["error", "error", "warning"]),
        (
            {"image": OWN_IMAGE, "hyperparameters": {"model_name": "acme/model"}},
            ["error", "warning"],  # the image may hold the model
        ),
    ],
)
def test_an_isolated_container_reaches_nothing(good, changes: dict[str, Any], expected: list[str]):
    job = good.replace(**{"request": {"EnableNetworkIsolation": True}, **changes})
    found, _ = preflight.offline_checks(job, PROJECT)
    assert [each.level for each in found if each.key == ISOLATED] == expected
    assert all(each.cure for each in found)
